"""Writes the pages of the C interface: a page for each header, which names its objects in their order and
leaves their text to Breathe. An object's anchor is Sphinx's, "c.NAME".
"""
import re
import xml.etree.ElementTree as ElementTree

import rst

#: Breathe takes a new line for a new paragraph, and joins what is before and after a list of parameters.
LINE = re.compile(r"(<verbatim>.*?</verbatim>)|(?<=[^>\s])\s*\n\s*(?=[^<\s])", re.S)
AFTER = re.compile(r"(</(?:parameterlist|simplesect)>)\s*(?!\s|<parameterlist|<simplesect|</para>)")
NAME = re.compile(r"memopt_\w+(?:::\w+)?(?:\(\))?")


def mended(path):
    """What is in a file of Doxygen, which is made ready for Breathe."""
    text = LINE.sub(lambda x: x[1] or " ", path.read_text(encoding="utf-8"))
    text = AFTER.sub(r"\1</para><para>", text)
    path.write_text(text, encoding="utf-8")
    return ElementTree.fromstring(text).find("compounddef[@kind='file']")


def constants(enum):
    """Those of an enum without a name: Breathe would number it, and name them by the number."""
    brief = "".join(enum.find("briefdescription").itertext()).strip()
    yield from (NAME.sub(r"``\g<0>``", brief), "")
    for value in enum.iter("enumvalue"):
        yield from rst.directive("doxygenenumvalue", value.findtext("name"))


def page(header, compound):
    name, kinds = compound.findtext("compoundname"), {section.get("kind") for section in compound.iter("sectiondef")}
    lines = [*rst.title(header), *rst.directive("code-block", "c", ["#include <%s>" % header])]
    lines += rst.directive("doxygenfile", name, sections="briefdescription detaileddescription")
    if "func" in kinds:
        lines += [*rst.title("Functions", "-"), *rst.directive("doxygenfile", name, sections="func")]
    structs = [rst.directive("doxygenstruct", struct.text, members="") for struct in compound.iter("innerclass")]
    lines += sum(structs, rst.title("Structs", "-") if structs else [])
    types = [x for x in compound.iter("memberdef") if x.get("kind") in ("typedef", "enum")]
    lines += rst.title("Types and constants", "-") if types else []
    for member in sorted(types, key=lambda x: int(x.find("location").get("line"))):
        of_type = rst.directive("doxygentypedef", member.findtext("name"))
        lines += of_type if member.get("kind") == "typedef" else constants(member)
    if "define" in kinds:
        lines += [*rst.title("Macros", "-"), *rst.directive("doxygenfile", name, sections="define")]
    return lines


def write(folder, out):
    """Pages for what Doxygen wrote into a folder."""
    names = {}  # of a page: the file's name
    for compound in filter(None.__ne__, map(mended, sorted(folder.glob("*.xml")))):
        header = compound.find("location").get("file")
        place = "c/" + header[len("memopt/") : -len(".h")]
        names[place] = compound.findtext("compoundname")
        rst.write(out / (place + ".rst"), page(header, compound))
    places = sorted(names, key=lambda x: (x.count("/"), x))
    lines = rst.title("C interface")
    lines += ["One page for each header; ``memopt/memopt.h`` includes those of the library.", ""]
    for place in places:
        brief = rst.directive("doxygenfile", names[place], sections="briefdescription")
        lines += [":doc:`/%s`" % place, *rst.indented(brief)]
    lines += rst.directive("toctree", "", ["/" + place for place in places], hidden="")
    rst.write(out / "c" / "index.rst", lines)
