"""Writes the pages of the C interface: a page for each header, which names its objects in their order and
leaves their text to Breathe. An object's anchor is Sphinx's, "c.NAME".
"""
import re
import xml.etree.ElementTree as ElementTree

#: Breathe takes a new line for a new paragraph, and joins what is before and after a list of parameters.
LINE = re.compile(r"(<verbatim>.*?</verbatim>)|(?<=[^>\s])\s*\n\s*(?=[^<\s])", re.S)
AFTER = re.compile(r"(</(?:parameterlist|simplesect)>)\s*(?!\s|<parameterlist|<simplesect|</para>)")
NAME = re.compile(r"memopt_\w+(?:::\w+)?(?:\(\))?")


def title(text, line):
    return "%s\n%s\n" % (text, line * len(text))


def directive(name, argument, *options):
    return "\n".join([".. %s:: %s" % (name, argument), *("   :%s" % option for option in options), ""])


def mended(path):
    """What is in a file of Doxygen, which is made ready for Breathe."""
    text = LINE.sub(lambda x: x[1] or " ", path.read_text(encoding="utf-8"))
    text = AFTER.sub(r"\1</para><para>", text)
    path.write_text(text, encoding="utf-8")
    return ElementTree.fromstring(text).find("compounddef[@kind='file']")


def constants(enum):
    """Those of an enum without a name: Breathe would number it, and name them by the number."""
    brief = "".join(enum.find("briefdescription").itertext()).strip()
    yield NAME.sub(r"``\g<0>``", brief) + "\n"
    for value in enum.iter("enumvalue"):
        yield directive("doxygenenumvalue", value.findtext("name"))


def page(header, compound):
    name = compound.findtext("compoundname")
    kinds = {section.get("kind") for section in compound.iter("sectiondef")}
    parts = [title(header, "="), ".. code-block:: c\n\n   #include <%s>\n" % header]
    parts.append(directive("doxygenfile", name, "sections: briefdescription detaileddescription"))
    if "func" in kinds:
        parts += [title("Functions", "-"), directive("doxygenfile", name, "sections: func")]
    structs = [directive("doxygenstruct", struct.text, "members:") for struct in compound.iter("innerclass")]
    parts += [title("Structs", "-"), *structs] if structs else []
    types = []
    for member in compound.iter("memberdef"):
        text = directive("doxygentypedef", member.findtext("name"))
        if member.get("kind") in ("typedef", "enum"):
            text = text if member.get("kind") == "typedef" else "\n".join(constants(member))
            types.append((int(member.find("location").get("line")), text))
    parts += [title("Types and constants", "-"), *(text for _, text in sorted(types))] if types else []
    if "define" in kinds:
        parts += [title("Macros", "-"), directive("doxygenfile", name, "sections: define")]
    return "\n".join(parts)


def write(folder, out):
    """Pages for what Doxygen wrote into a folder."""
    names = {}  # of a page: the file's name
    for compound in filter(None.__ne__, map(mended, sorted(folder.glob("*.xml")))):
        header = compound.find("location").get("file")
        place = "c/" + header[len("memopt/") : -len(".h")]
        names[place] = compound.findtext("compoundname")
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / (place + ".rst")).write_text(page(header, compound), encoding="utf-8")
    places = sorted(names, key=lambda x: (x.count("/"), x))
    lines = [title("C interface", "="), "One page for each header; ``memopt/memopt.h`` includes those of the library.\n"]
    for place in places:
        brief = directive("doxygenfile", names[place], "sections: briefdescription")
        lines.append(":doc:`/%s`\n   %s" % (place, brief.replace("\n", "\n   ")))
    lines += [".. toctree::\n   :hidden:\n", *("   /" + place for place in places), ""]
    (out / "c" / "index.rst").write_text("\n".join(lines), encoding="utf-8")
