"""Translates the PTX of the library's kernels to C, which the simulated CUDA driver runs.

    translate.py TEXT.ptx OUT.c [--image ORIGINAL.ptx] [--only KERNEL]

What an instruction does stands in semantics.h, one function for each, named like the instruction
with its dots as underlines; here is only the text's structure: registers, labels, memory and names.
What is not known is an error, never a guess. --image: the text that the library carries, where TEXT
is a changed copy of it. --only: one kernel; the driver takes the others from its own.
"""
import argparse
import pathlib
import re
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from parts import in_parts, shared

REGISTERS = {"pred": "uint32_t", "b16": "uint16_t", "u16": "uint16_t", "s16": "uint16_t",
             "b32": "uint32_t", "u32": "uint32_t", "s32": "uint32_t", "f32": "uint32_t",
             "b64": "uint64_t", "u64": "uint64_t", "s64": "uint64_t", "f64": "uint64_t"}
SPECIAL = {"%tid.x": "thread_index(run)", "%ctaid.x": "block_index(run)",
           "%ntid.x": "block_threads(run)"}
SHARED_FROM = 256  # the first address of shared memory, so that a lost base is noticed
COLLECTIVE = ("shfl", "redux", "vote", "bar")


class Unknown(Exception):
    pass


def width(kind):
    """Bytes of a type such as u32, f64 or b8."""
    return int(kind[1:]) // 8


def digests(text):
    """CRC-32, as module.c computes it, of what the library loads for each kernel: the text without the
    other kernels."""
    pieces, kernel = [(None, [])], None
    for line in text.splitlines(keepends=True):
        begins = re.match(r"\.visible \.entry (\w+)\(", line)
        if begins or kernel != pieces[-1][0]:
            kernel = begins[1] if begins else kernel
            pieces.append((kernel, []))
        pieces[-1][1].append(line)
        if line.startswith("}"):
            kernel = None
    pieces = [(name, "".join(lines)) for name, lines in pieces]
    return [zlib.crc32("".join(piece for name, piece in pieces if name in (None, kernel)).encode())
            for kernel, _ in pieces if kernel is not None]


def identifier(name):
    return re.sub(r"\W", "_", name.lstrip("%"))


class Variable:
    """A .shared or .global variable: its bytes, and its data where it has any."""

    FORM = re.compile(
        r"\.(?P<space>shared|global)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<kind>[busf]\d+)\s+"
        r"(?P<name>[\w$]+)\s*(?:\[(?P<count>\d+)\])?\s*(?:=\s*\{(?P<data>[^}]*)\})?$", re.S)

    def __init__(self, text):
        found = self.FORM.search(text)
        if found is None:
            raise Unknown("variable: " + text[:80])
        self.space, self.name, self.data = found["space"], found["name"], found["data"]
        self.bytes = width(found["kind"]) * int(found["count"] or 1)
        self.align = int(found["align"] or width(found["kind"]))
        if self.data is not None and found["kind"] != "b8":
            raise Unknown("data of ." + found["kind"])


class Kernel:
    def __init__(self, name, parameters, body, globals_, shared):
        self.name, self.globals, self.shared = name, globals_, dict(shared)
        self.first, self.second = self.parameters_of(parameters)
        self.offsets, self.used = {}, 0
        self.body = [self.statement(text, line) for text, line in statements(body)]

    @staticmethod
    def parameters_of(text):
        names = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(\w+)(?:\[(\d+)\])?", text)
        if len(names) != 2 or names[0][0] != "b8" or names[1][0] != "u64":
            raise Unknown("parameters: " + text)
        return (names[0][1], int(names[0][2])), names[1][1]

    def shared_address(self, name):
        if name not in self.offsets:
            variable = self.shared[name]
            self.used = -(-self.used // max(16, variable.align)) * max(16, variable.align)
            self.offsets[name] = SHARED_FROM + self.used
            self.used += variable.bytes
        return "%du" % self.offsets[name]

    def name_of(self, text):
        """A variable's or a parameter's address; None: it is neither."""
        if text == self.first[0]:
            return "(uint64_t)(uintptr_t)args"
        if text == self.second:
            return "(uint64_t)(uintptr_t)&first_item"
        if text in self.shared:
            return self.shared_address(text)
        if text in self.globals:
            return "(uint64_t)(uintptr_t)" + identifier(text)
        return None

    def operand(self, text):
        text = text.strip()
        if text in SPECIAL:
            return SPECIAL[text]
        if re.fullmatch(r"0[fF][0-9A-Fa-f]{8}", text):
            return "0x%su" % text[2:]
        if re.fullmatch(r"0[dD][0-9A-Fa-f]{16}", text):
            return "0x%sull" % text[2:]
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", text):
            return "%dull" % (int(text.rstrip("U"), 0) & 0xFFFFFFFFFFFFFFFF)
        named = self.name_of(text)
        if named is not None:
            return named
        if re.fullmatch(r"%?[A-Za-z_]\w*", text):
            return identifier(text)
        raise Unknown("operand: " + text)

    def address(self, text):
        found = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", text.strip())
        if found is None:
            raise Unknown("address: " + text)
        base = self.operand(found[1])
        if found[2] is None:
            return base
        # an address of 32 bits, as shared memory's may be, stays one
        return "(%s + (__typeof__(%s))%dll)" % (base, base, int(found[2], 0))

    def memory(self, words, operands):
        """ld.SPACE[.how][.v2|.v4].TYPE and st.…"""
        vector = next((int(w[1:]) for w in words if w in ("v2", "v4")), 1)
        atomic = int("volatile" in words)
        space = next((w for w in words if w in ("global", "shared", "param")), None)
        rest = [w for w in words[1:-1] if w not in ("v2", "v4", "volatile", "nc", "cs", space)]
        kind = words[-1]
        if space is None or rest:
            raise Unknown(".".join(words))
        loads = words[0] == "ld"
        place, value = (operands[1], operands[0]) if loads else operands
        values = [v.strip() for v in value.strip("{} ").split(",")] if vector > 1 else [value]
        at = self.address(place)
        lines = ["unsigned char *at = %s(run, %s, %d, %d, %d);" % (
            space, at, width(kind) * vector, int(not loads), atomic)]
        for i, v in enumerate(values):
            where = "at + %d" % (i * width(kind))
            if loads:
                lines.append("%s = load_%s(%s);" % (self.operand(v), kind, where))
            else:
                lines.append("store_%s(%s, %s);" % (kind, where, self.operand(v)))
        return "{ %s }" % " ".join(lines)

    def reduction(self, name, operands):
        """red.global.max.u32"""
        if name != "red.global.max.u32":
            raise Unknown(name)
        return "red_global_max_u32(global(run, %s, 4, 1, 1), %s);" % (
            self.address(operands[0]), self.operand(operands[1]))

    def move(self, name, operands):
        """mov, with a pack or an unpacking of parts."""
        to, source = operands
        half = {"b64": 32, "b32": 16}.get(name.split(".")[1])
        if to.startswith("{"):
            parts = [p.strip() for p in to.strip("{} ").split(",")]
            value = self.operand(source)
            return " ".join("%s = %s >> %d;" % (self.operand(p), value, i * half)
                            for i, p in enumerate(parts))
        if source.startswith("{"):
            low, high = source.strip("{} ").split(",")
            return "%s = (uint64_t)%s | (uint64_t)%s << %d;" % (
                self.operand(to), self.operand(low), self.operand(high), half)
        return "%s = %s;" % (self.operand(to), self.operand(source))

    def instruction(self, text, line):
        name, _, rest = text.partition(" ")
        operands = [o.strip() for o in re.split(r",(?![^{\[]*[}\]])", rest)] if rest.strip() else []
        words = name.split(".")
        if words[0] in ("ld", "st"):
            return self.memory(words, operands)
        if words[0] == "red":
            return self.reduction(name, operands)
        if words[0] == "mov":
            return self.move(name, operands)
        if words[0] == "bra":
            return "goto %s;" % identifier(operands[0])
        if words[0] == "ret":
            return "return;"
        if words[0] == "bar":
            return "%s(run, %s, %d);" % (identifier(name), self.operand(operands[0]), line)
        if words[0] == "cvta" and words[1] == "to" and words[2] == "global":
            return "%s = %s;" % (self.operand(operands[0]), self.operand(operands[1]))
        sources = [self.operand(o) for o in operands[1:]]
        if words[0] in COLLECTIVE:
            sources = ["run"] + sources + ["%d" % line]
        to, _, valid = operands[0].partition("|")  # a shuffle's source lane is always a member
        code = "%s = %s(%s);" % (self.operand(to), identifier(name), ", ".join(sources))
        return code + (" %s = 1;" % self.operand(valid) if valid else "")

    def statement(self, text, line):
        text = re.sub(r"\s+", " ", text)
        if text in ("{", "}"):
            return text
        if text.endswith(":"):
            return identifier(text[:-1]) + ":;"
        if text.startswith(".reg"):
            return self.declaration(text)
        if text.startswith(".shared"):
            variable = Variable(text)
            self.shared[variable.name] = variable
            return ""
        if text.startswith(".pragma"):
            return ""
        if text.startswith("."):
            raise Unknown(text)
        guard = re.match(r"@(!?)(%\w+) ", text)
        code = self.instruction(text[guard.end() if guard else 0:].strip(), line)
        return "if (%s%s) { %s }" % (guard[1], self.operand(guard[2]), code) if guard else code

    @staticmethod
    def declaration(text):
        found = re.fullmatch(r"\.reg \.(\w+) (.*)", text)
        kind = REGISTERS[found[1]]
        names = []
        poison = "0xC7C7C7C7C7C7C7C7ull"  # what no program may rely on
        for name in found[2].split(","):
            many = re.fullmatch(r"\s*(%\w+)<(\d+)>\s*", name)
            names += ["%s%d" % (identifier(many[1]), i) for i in range(1, int(many[2]))] if many \
                else [identifier(name.strip())]
        return "%s %s;" % (kind, ", ".join("%s = (%s)%s" % (n, kind, poison) for n in names)) if names else ""

    def code(self, index):
        return "\n".join([
            "HIDDEN void %s(const void *args, uint64_t first_item)" % self.name,
            "{",
            "const struct ptx_run state = enter(%d, &translated_ran[%d]), *run = &state;" % (
                self.used, index),
            *(line for line in self.body if line), "}", ""])


STATEMENT = re.compile(r"\s*(?:([\w$]+:)|([{}])|([^;{}\s][^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);|$)")


def statements(body):
    """(text, line) of each label, brace of a block, and statement (which may hold braces)."""
    at, line = 0, 1
    while at < len(body):
        found = STATEMENT.match(body, at)
        if found is None:
            raise Unknown("text: " + body[at:at + 80].strip())
        if found.lastindex:
            start = found.start(found.lastindex)
            line += body.count("\n", at, start)
            at = start
            yield found[found.lastindex], line
        line += body.count("\n", at, found.end())
        at = found.end()


ENTRY = re.compile(r"\.visible \.entry (\w+)\(([^)]*)\)([^{]*)\{")


def kernels_of(text, only):
    plain = re.sub(r"//[^\n]*", "", text)
    outside = ENTRY.split(plain)[0]
    globals_, shared = {}, {}
    for piece in re.findall(r"(?:\.visible )?\.(?:global|shared)[^;]*", outside):
        variable = Variable(piece)
        (globals_ if variable.space == "global" else shared)[variable.name] = variable
    kernels = []
    for found in ENTRY.finditer(plain):
        depth, end = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(plain[end], 0)
            end += 1
        if only in (None, found[1]):
            kernels.append(Kernel(found[1], found[2], plain[found.end():end - 1], globals_, shared))
    if not kernels:
        raise Unknown("no kernel%s" % ("" if only is None else " " + only))
    return kernels, globals_


def translate(text, image, only=None):
    kernels, globals_ = kernels_of(text, only)
    parts = ['#include "semantics.h"\n']
    for v in globals_.values():
        parts.append("static const unsigned char %s[%d] __attribute__((aligned(%d))) = {%s};\n" % (
            identifier(v.name), v.bytes, max(v.align, 1), v.data or "0"))
    parts += in_parts(k.code(i) for i, k in enumerate(kernels))
    rows = ['{"%s", %d, %s},' % (k.name, k.first[1], k.name) for k in kernels]
    parts.append(shared("\n".join([
        *("HIDDEN void %s(const void *args, uint64_t first_item);" % k.name for k in kernels),
        "char translated_ran[%d];" % len(kernels),
        "const mo_sim_kernel translated_kernels[] = {%s {NULL, 0, NULL}};" % " ".join(rows),
        "const uint64_t translated_digests[] = {%s, 0};" % ", ".join(map(str, digests(image)))])))
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--image", type=pathlib.Path)
    parser.add_argument("--only")
    options = parser.parse_args()
    text = options.text.read_text()
    image = options.image.read_text() if options.image else text
    try:
        options.out.write_text(translate(text, image, options.only))
    except Unknown as error:
        sys.exit("translate.py: %s: not known: %s" % (options.text, error))


if __name__ == "__main__":
    main()
