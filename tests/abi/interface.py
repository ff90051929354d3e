#!/usr/bin/env python3
"""A binary interface as text: names with their versions and types, layouts of structs, enumerators.

    interface.py LIBRARY INCLUDE TEXT            compares with the committed text; exit status 77 is a skip
    interface.py --write LIBRARY INCLUDE TEXT    makes it anew

INCLUDE is the folder of the library's own headers.

abidw (libabigail) reads the debug information; a line of text is a function, a type or an enumeration.
"""
import difflib
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as Tree

SHORT = {"uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64", "int8_t": "i8",
         "int16_t": "i16", "int32_t": "i32", "int64_t": "i64"}


class Interface:
    def __init__(self, library, include):
        self.include = str(pathlib.Path(include).resolve())
        words = ["abidw", "--headers-dir", self.include, "--drop-private-types",
                 "--exported-interfaces-only", str(library)]
        self.root = Tree.fromstring(subprocess.run(words, capture_output=True, check=True).stdout)
        self.types = {}
        for node in self.root.iter():
            known = self.types.get(node.get("id"))
            if node.get("id") and (known is None or known.get("is-declaration-only")):
                self.types[node.get("id")] = node
        self.layouts = {}

    def spelled(self, identity):
        """A type as C spells it; a struct or enumeration of the interface is noted."""
        node = self.types[identity]
        kind, name = node.tag, node.get("name", "")
        if kind == "pointer-type-def":
            pointed = self.types[node.get("type-id")]
            return self.spelled(pointed.get("id")) + (pointed.tag != "function-type") * " *"
        if kind == "qualified-type-def":
            inner = self.spelled(node.get("type-id"))
            return inner + " const" if inner.endswith("*") else "const " + inner
        if kind == "array-type-def":
            sizes = "".join("[%s]" % part.get("length") for part in node.iter("subrange"))
            return self.spelled(node.get("type-id")) + sizes
        if kind == "function-type":
            return self.signature("(*)", node)
        if kind == "typedef-decl":
            if name in SHORT:
                return SHORT[name]
            if not self.is_opaque(node.get("type-id")):
                self.note(name, node.get("type-id"))
            return name
        self.note(name, identity)
        return name

    def is_opaque(self, identity):
        """A struct that only the library's own files define."""
        return (self.types[identity].tag == "class-decl" and
                not self.types[identity].get("filepath", "").startswith(self.include))

    def declared(self, node, name=""):
        spelled = self.spelled(node.get("type-id")) + " " + (name or node.get("name", ""))
        return spelled.strip().replace("* ", "*")

    def signature(self, name, node):
        parts = ["..." if each.get("is-variadic") else self.declared(each)
                 for each in node.findall("parameter")]
        return "%s(%s)" % (self.declared(node.find("return"), name), ", ".join(parts) or "void")

    def note(self, name, identity):
        node = self.types[identity]
        if not name.startswith("memopt_") or name in self.layouts:
            return
        self.layouts[name] = ""
        if node.tag in ("class-decl", "union-decl") and not self.is_opaque(identity):
            fields = ["%d %s" % (int(member.get("layout-offset-in-bits", 0)) / 8,
                                 self.declared(member.find("var-decl")))
                      for member in node.findall("data-member")]
            bytes_ = int(node.get("size-in-bits")) // 8
            self.layouts[name] = "%s: %d bytes: %s" % (name, bytes_, ", ".join(fields))
        elif node.tag == "enum-decl":
            values = ["%s=%s" % (each.get("name"), each.get("value"))
                      for each in node.findall("enumerator")]
            self.layouts[name] = "%s: %s" % (name, ", ".join(values))
        elif node.tag == "pointer-type-def" or node.tag == "typedef-decl":
            self.layouts[name] = "%s: %s" % (name, self.spelled(identity))

    def text(self):
        versions = {symbol.get("name"): symbol.get("version") or "no version"
                    for symbols in ("elf-function-symbols", "elf-variable-symbols")
                    for group in self.root.iter(symbols) for symbol in group}
        functions = {}
        for node in self.root.iter("function-decl"):
            name = node.get("name")
            functions[name] = self.signature("%s@%s" % (name, versions.get(name)), node)
        for name in versions.keys() - functions.keys():
            functions[name] = "%s@%s" % (name, versions[name])
        lines = sorted(functions.values(), key=lambda line: re.search(r"\w+@", line)[0])
        lines += sorted(filter(None, self.layouts.values()))
        return "".join(textwrap.fill(line, 110, subsequent_indent="    ", break_long_words=False) + "\n"
                       for line in lines)


def main(arguments):
    write = arguments[:1] == ["--write"]
    if shutil.which("abidw") is None or platform.machine() != "x86_64":
        print("this needs abidw (abigail-tools), and the texts are of x86-64")
        return 77
    library, include, text = arguments[write:]
    committed, now = pathlib.Path(text), Interface(library, include).text()
    if write:
        committed.write_text(now)
        return 0
    then = committed.read_text()
    sys.stderr.writelines(difflib.unified_diff(then.splitlines(True), now.splitlines(True),
                                               text, library, n=0))
    differs = now != then
    if differs:
        print("The binary interface is another one. An addition is fine: run tests/abi/update and commit "
              "the text with it. A change of what is there breaks users.", file=sys.stderr)
    return int(differs)


sys.exit(main(sys.argv[1:]))
