"""The ctypes tables say what the C headers say: checked by compiling a C program."""

from __future__ import annotations

import ctypes
import glob
import importlib
import os
import pkgutil
import re
import shutil
import subprocess

import pytest

import memopt
from memopt import _abi
from memopt._library import lib

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
INSTALLED = os.path.join(os.path.dirname(os.path.dirname(memopt.library_path)), "include")
INCLUDE = INSTALLED if os.path.isdir(INSTALLED) else os.path.join(ROOT, "include")
for module in pkgutil.walk_packages(_abi.__path__, _abi.__name__ + "."):
    importlib.import_module(module.name)  # of libraries built on it too, where they are joined to it
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def enumerators():
    for kind, prefix in _abi.ENUM_PREFIXES.items():
        for member in kind:
            yield _abi.ENUM_SPELLINGS.get((kind, member.name), prefix + member.name), int(member)


@pytest.fixture(scope="module")
def c_facts(tmp_path_factory):
    """What the compiler says: {"sizeof X": n, "offsetof X.f": n, "enum E": n}."""
    if not COMPILER or not os.path.isdir(INCLUDE):
        pytest.skip("no C compiler or no headers")
    lines = ["#include <stdio.h>"]
    lines += ["#include <%s>" % os.path.relpath(file, INCLUDE) for file in header_files()]
    lines.append("int main(void) {")
    for name, struct in _abi.STRUCTS.items():
        lines.append('printf("sizeof %s=%%zu\\n", sizeof(%s));' % (name, name))
        for field, *_ in struct._fields_:
            lines.append(
                'printf("offsetof %s.%s=%%zu size %%zu\\n", '
                "offsetof(%s, %s), sizeof(((%s *)0)->%s));" % (name, field, name, field, name, field)
            )
    for name, _ in enumerators():
        lines.append('printf("enum %s=%%lld\\n", (long long)%s);' % (name, name))
    lines.append("return 0; }")
    folder = tmp_path_factory.mktemp("abi")
    source, program = folder / "facts.c", folder / "facts"
    source.write_text("\n".join(lines))
    subprocess.run([COMPILER, "-std=c11", "-I", INCLUDE, str(source), "-o", str(program)], check=True)
    text = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize("name", sorted(_abi.STRUCTS))
def test_struct(c_facts, name):
    struct = _abi.STRUCTS[name]
    assert int(c_facts["sizeof " + name]) == ctypes.sizeof(struct)
    for field, *_ in struct._fields_:
        place = getattr(struct, field)
        expected = "%d size %d" % (place.offset, place.size)
        assert c_facts["offsetof %s.%s" % (name, field)] == expected


def test_enumerators(c_facts):
    for name, value in enumerators():
        assert int(c_facts["enum " + name]) == value, name


def header_files():
    """All but those for libraries built on libmemopt."""
    found = glob.glob(os.path.join(INCLUDE, "memopt", "**", "*.h"), recursive=True)
    return sorted(file for file in found if "experimental" not in file)


def headers():
    if not header_files():
        pytest.skip("no headers")
    text = ""
    for file in header_files():
        with open(file, encoding="utf-8") as source:
            text += source.read() + "\n"
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"//[^\n]*", " ", text)


def test_every_struct_and_enumerator_is_in_a_table():
    text = headers()
    structs = set(re.findall(r"typedef struct (memopt_\w+) \{", text))
    assert structs == set(_abi.STRUCTS)
    known = {name for name, _ in enumerators()}
    names = set(re.findall(r"\b(MEMOPT_[A-Z0-9_]+)\s*=\s*(?:\d|0x)", text))
    names |= {"MEMOPT_" + name for name in re.findall(r"X\((\w+), \d+,", text)}
    assert names - known == {"MEMOPT_DTYPE_INVALID"}


# How a C parameter or result travels, by its ctypes counterpart.
CLASSES = {
    "char": "pointer",
    "float": "float32",
    "double": "float64",
    "uint64_t": "u64",
    "int32_t": "i32",
    "uint32_t": "u32",
    "size_t": "u64",
    "void": "void",
    "memopt_status": "i32",
    "memopt_dtype": "i32",
    "memopt_block_format": "u32",
    "memopt_tag": "u32",
    "memopt_host_access": "u32",
    "memopt_step": "u32",
    "memopt_pause": "u32",
    "memopt_race_memory": "u32",
    "memopt_race_mode": "u32",
    "memopt_ticket": "u64",
    "memopt_stream": "pointer",
    "memopt_log_level": "i32",
    "memopt_log_callback": "pointer",
    "memopt_block_visitor": "pointer",
    "memopt_range_observer": "pointer",
    "memopt_process_visitor": "pointer",
    "memopt_export_writer": "pointer",
    "memopt_pluggable_raise": "pointer",
    "memopt_pluggable_observer": "pointer",
    "memopt_plan_measure": "pointer",
}


def c_class(text):
    text = text.strip()
    if "*" in text or "(" in text:
        return "pointer"
    words = [word for word in re.findall(r"\w+", text) if word not in ("const", "struct")]
    return CLASSES[words[0]]


def ctypes_class(kind):
    if kind is None:
        return "void"
    if kind is _abi.CHECKED:
        return "i32"
    if kind in (ctypes.c_void_p, ctypes.c_char_p) or hasattr(kind, "contents"):
        return "pointer"
    if issubclass(kind, ctypes._CFuncPtr):
        return "pointer"
    return {
        ctypes.c_uint64: "u64",
        ctypes.c_size_t: "u64",
        ctypes.c_uint32: "u32",
        ctypes.c_int32: "i32",
        ctypes.c_double: "float64",
        ctypes.c_float: "float32",
    }[kind]


def split_parameters(text):
    depth, start, parts = 0, 0, []
    for i, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [] if [part.strip() for part in parts] == ["void"] else parts


def test_every_function_has_its_prototype():
    text = re.sub(r"\s+", " ", headers())
    found = {}
    for result, name, rest in re.findall(r"MEMOPT_API ([\w ]+?[ *]+)(memopt_\w+)\((.*?)\);", text):
        found[name] = (c_class(result), [c_class(part) for part in split_parameters(rest)])
    tables = {name: row for table in _abi.PROTOTYPES.values() for name, row in table.items()}
    assert set(found) == set(tables)
    for name, (result, parameters) in found.items():
        ours = tables[name]
        assert ctypes_class(ours[0]) == result, name
        assert [ctypes_class(kind) for kind in ours[1]] == parameters, name


def test_item_sizes_and_names_are_the_library_s():
    for dtype in memopt.DType:
        assert lib.memopt_dtype_size(dtype) == dtype.itemsize
        assert lib.memopt_dtype_name(dtype).decode() == dtype.name.lower()
    for status in memopt.Status:
        assert lib.memopt_status_name(status).decode() in (status.name, "USER")
