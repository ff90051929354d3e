"""Writes the pages of the C interface from Doxygen's XML: a page for each header, in Sphinx's C domain.

What the page of a header has is in the order of the header: what the file is about, its functions,
structs, other types and constants, macros. An object's anchor is Sphinx's, "c.NAME".
"""
import re
import xml.etree.ElementTree as ElementTree

import rst

ROLES = {"function": "c:func", "define": "c:macro", "typedef": "c:type", "enumvalue": "c:enumerator",
         "enum": "c:enum", "struct": "c:struct", "variable": "c:member"}  # fmt: skip
SECTIONS = (("function", "Functions"), ("struct", "Structs"), ("type", "Types and constants"), ("define", "Macros"))
DASHES = {"ndash": "–", "mdash": "—", "nonbreakablespace": "\u00a0", "sp": " "}


def text_of(node):
    return " ".join("".join(node.itertext()).split()) if node is not None else ""


class Interface:
    """All that Doxygen read."""

    def __init__(self, folder):
        self.compounds = {}
        self.roles = {}  # of an identity: the role, the name, and what is shown
        for path in sorted(folder.glob("*.xml")):
            for compound in ElementTree.parse(path).getroot().findall("compounddef"):
                self.compounds[compound.get("id")] = compound
                self.know(compound)

    def know(self, compound):
        kind, name = compound.get("kind"), text_of(compound.find("compoundname"))
        if kind == "struct":
            self.roles[compound.get("id")] = ("c:struct", name)
        elif kind == "file":
            self.roles[compound.get("id")] = ("doc", "/" + page_of(compound))
        for member in compound.iter("memberdef"):
            own = text_of(member.find("name"))
            inside = name + "." if member.get("kind") == "variable" else ""
            self.roles[member.get("id")] = (ROLES[member.get("kind")], inside + own)
            for value in member.findall("enumvalue"):
                self.roles[value.get("id")] = ("c:enumerator", text_of(value.find("name")))

    # --- text -----------------------------------------------------------------------------------------

    def inline(self, node):
        """What stands in a line: text, code, references."""
        parts = [rst.plain(node.text or "")]
        for child in node:
            parts.append(self.piece(child))
            parts.append(rst.plain(child.tail or ""))
        return re.sub(r"\s+", " ", "".join(parts)).strip()

    def piece(self, node):
        if node.tag in DASHES:
            return DASHES[node.tag]
        if node.tag == "ref":
            role, target = self.roles.get(node.get("refid"), (None, None))
            return rst.role(role, text_of(node), target) if role else rst.plain(text_of(node))
        if node.tag == "ulink":
            return "%s`%s <%s>`__%s" % (rst.JOIN, rst.plain(text_of(node)), node.get("url"), rst.JOIN)
        if node.tag in ("computeroutput", "verbatim"):
            return rst.code(text_of(node))
        if node.tag in ("bold", "emphasis"):
            mark = "**" if node.tag == "bold" else "*"
            return "%s%s%s%s%s" % (rst.JOIN, mark, rst.plain(text_of(node)), mark, rst.JOIN)
        return self.inline(node)

    def paragraph(self, node):
        """A paragraph and the lists and fields in it; fields come last."""
        line = ElementTree.Element("para")
        line.text, lines, fields = node.text, [], []

        def flush():
            words = self.inline(line)
            lines.extend([words, ""] if words else [])
            line.clear()

        for child in node:
            block = getattr(self, "block_" + child.tag, None)
            if block is None:
                line.append(child)
                continue
            flush()
            (fields if child.tag in ("parameterlist", "simplesect") else lines).extend(block(child))
            line.text = child.tail
        flush()
        return lines, fields

    def paragraphs(self, node):
        lines, fields = [], []
        for child in node if node is not None else ():
            if child.tag == "para":
                more, last = self.paragraph(child)
                lines += more
                fields += last
            elif child.tag.startswith("sect"):
                words = self.inline(child.find("title"))
                lines += ["**%s**" % words, "", *self.paragraphs(child)]
        return [*lines, *fields, ""] if fields else lines

    def block_parameterlist(self, node):
        lines = []
        for item in node.findall("parameteritem"):
            words = self.paragraphs(item.find("parameterdescription"))
            for name in item.iter("parametername"):
                lines += rst.field("%s %s" % (node.get("kind"), text_of(name)), words)
        return lines

    def block_simplesect(self, node):
        name = {"return": "returns", "since": "Since"}.get(node.get("kind"), node.get("kind"))
        return rst.field(name, self.paragraphs(node))

    def block_itemizedlist(self, node, mark="-"):
        lines = []
        for item in node.findall("listitem"):
            if not len(item):
                raise SystemExit("an empty item of a list: does a line of a description begin with a number and a dot?")
            first, *rest = self.paragraphs(item)
            lines += ["%s %s" % (mark, first), *rst.indented(rest, " " * (len(mark) + 1))]
        return [*lines, ""]

    def block_orderedlist(self, node):
        return self.block_itemizedlist(node, "#.")

    def block_programlisting(self, node):
        rows = ["".join(self.code_text(row)) for row in node.findall("codeline")]
        return rst.directive("code-block", "c", rows)

    def code_text(self, node):
        yield node.text or ""
        for child in node:
            yield from " " if child.tag == "sp" else self.code_text(child)
            yield child.tail or ""

    def block_verbatim(self, node):
        return rst.directive("code-block", "text", (node.text or "").strip("\n").split("\n"))

    def block_table(self, node):
        lines = []
        for row in node.findall("row"):
            for k, entry in enumerate(row.findall("entry")):
                words = self.paragraphs(entry)
                lines += [("* - " if k == 0 else "  - ") + (words[0] if words else "")]
                lines += rst.indented(words[1:], "    ")
        return rst.directive("list-table", "", lines)

    def about(self, node):
        """The description of an object."""
        brief = self.paragraphs(node.find("briefdescription"))
        return brief + self.paragraphs(node.find("detaileddescription"))

    # --- objects --------------------------------------------------------------------------------------

    def member_function(self, node):
        words = text_of(node.find("definition")) + text_of(node.find("argsstring"))
        return rst.directive("c:function", words, self.about(node))

    def member_typedef(self, node):
        words = text_of(node.find("definition"))[len("typedef ") :]
        name = text_of(node.find("name"))
        if words == "struct %s %s" % (name, name):  # a handle
            words = name
        return rst.directive("c:type", words, self.about(node))

    def member_define(self, node):
        names = [text_of(x) for x in node.findall("param")]
        value = text_of(node.find("initializer"))
        about = self.about(node)
        if value and len(value) < 50 and not names:
            about += ["Value: " + rst.code(value), ""]
        words = "%s(%s)" % (text_of(node.find("name")), ", ".join(names)) if names else text_of(node.find("name"))
        return rst.directive("c:macro", words, about)

    def member_enum(self, node):
        """Constants; most have no type of their own."""
        lines = []
        for value in node.findall("enumvalue"):
            words = "%s %s" % (text_of(value.find("name")), text_of(value.find("initializer")))
            lines += rst.directive("c:enumerator", words, self.about(value))
        name = text_of(node.find("name"))
        if name and not name.startswith("@"):
            return rst.directive("c:enum", name, self.about(node) + lines)
        return self.about(node) + lines

    def struct(self, compound):
        lines = self.about(compound)
        for member in compound.iter("memberdef"):
            words = text_of(member.find("definition"))
            words = words.replace("%s::" % text_of(compound.find("compoundname")), "")
            after = text_of(member.find("argsstring"))
            words += "" if after.startswith(")") else after  # a function's parameters are there already
            lines += rst.directive("c:member", words, self.about(member))
        return rst.directive("c:struct", text_of(compound.find("compoundname")), lines)

    def page(self, compound):
        objects = []  # the line in the header, the section, the text
        for ref in compound.findall("innerclass"):
            inner = self.compounds[ref.get("refid")]
            objects.append((int(inner.find("location").get("line")), "struct", self.struct(inner)))
        for member in compound.iter("memberdef"):
            kind = member.get("kind")
            lines = getattr(self, "member_" + kind)(member)
            section = "type" if kind in ("enum", "typedef") else kind
            objects.append((int(member.find("location").get("line")), section, lines))
        header = header_of(compound)
        lines = [*rst.title(header), *rst.directive("code-block", "c", ["#include <%s>" % header])]
        lines += self.about(compound)
        for section, words in SECTIONS:
            own = [x for x in sorted(objects, key=lambda x: x[0]) if x[1] == section]
            lines += rst.title(words, "-") if own else []
            for _, _, text in own:
                lines += text
        return lines


def header_of(compound):
    """As a program includes it."""
    return compound.find("location").get("file")


def page_of(compound):
    """memopt/tools/trace.h is c/tools/trace."""
    return "c/" + header_of(compound)[len("memopt/") : -len(".h")]


def write(folder, out):
    """Pages for what Doxygen wrote into a folder; their places below OUT and what each is about."""
    interface = Interface(folder)
    headers = [x for x in interface.compounds.values() if x.get("kind") == "file"]
    for compound in headers:
        rst.write(out / (page_of(compound) + ".rst"), interface.page(compound))
    brief = {page_of(x): interface.paragraphs(x.find("briefdescription")) for x in headers}
    names = sorted(brief, key=lambda x: (x.count("/"), x))
    lines = rst.title("C interface")
    lines += ["One page for each header; ``memopt/memopt.h`` includes those of the library.", ""]
    for page in names:
        lines += [":doc:`/%s`" % page, *rst.indented(brief[page])]
    lines += rst.directive("toctree", "", ["/" + page for page in names], hidden="")
    rst.write(out / "c" / "index.rst", lines)
