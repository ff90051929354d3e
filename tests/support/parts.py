"""A long C text in parts that compilers take in seconds each (tests/ptx, tests/gcn).

The text is one file. Compiled with PART 0, 1, … it has that part's functions, without PART all; part 0
has what the parts share, which tests/sim/parts.h declares.
"""
PARTS = 8


def in_parts(functions):
    """The functions' texts, each in the part that has the least so far."""
    length = [0] * PARTS
    for text in functions:
        part = length.index(min(length))
        length[part] += len(text)
        yield "#if !defined PART || PART == %d\n%s\n#endif" % (part, text)


def shared(definitions):
    return "#if !defined PART || PART == 0\n%s\n#endif" % definitions
