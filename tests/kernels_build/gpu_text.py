"""The text that NVRTC and hipRTC compile, and the functions that it declares or defines."""
import pathlib
import re
import subprocess
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
START = ("kernels/core/rtc_types.h", "kernels/core/all_kernels.cu")  # as in MemoptFlatten.cmake


def flattened(cmake, build):
    """The text as a build makes it."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "kernels.cu"
        subprocess.run([cmake, f"-DROOT={ROOT}", f"-DMADE={build}/made", f"-DOUTPUT={out}", "-P",
                        ROOT / "cmake/MemoptFlatten.cmake"], check=True)
        return out.read_text()


def files():
    """The sources that the text is made of, but the tables, which the build makes."""
    found = []

    def add(name):
        if name not in found and (ROOT / name).exists():
            found.append(name)
            for other in re.findall(r'#include "([^"]*)"', (ROOT / name).read_text()):
                add(other)

    for name in START:
        add(name)
    return found


def library_options(vendor):
    """What the library gives the compiler of a vendor ("cuda", "hip") besides the target."""
    source = (ROOT / "lib/device/gpu/compile.c").read_text()
    table = re.search(r"\b%s_options\[\] = \{(.*?)NULL\}" % vendor, source, re.S)[1]
    return re.findall(r'"([^"]+)"', table)


def preprocessed(compiler, text, macros):
    """The text as a compiler with these macros sees it, by the host's compiler, whose own macros and
    headers are left out. As C, since a machine may have no compiler of C++."""
    given = [f"-D{macro}" for macro in ("__cplusplus=201703L", *macros)]
    done = subprocess.run([compiler, "-E", "-x", "c", "-undef", "-nostdinc", *given, "-"], input=text,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return done.stdout


# --- functions -----------------------------------------------------------------------------------

TOKEN = re.compile(
    r"(?P<skip>^[ \t]*#(?: (?P<marker>\d+) |(?:[^\n]*\\\n)*)[^\n]*|\n|[^\S\n]+|//[^\n]*|/\*.*?\*/)"
    r'|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|\w+|.', re.S | re.M)
CLOSING = {"(": ")", "[": "]", "{": "}"}
TAKE_PARENTHESES = {"__attribute__", "__launch_bounds__", "alignas", "decltype", "asm", "__asm__", "noexcept",
                    "_Pragma", "__typeof__", "explicit"}
NO_FUNCTIONS = {"typedef", "using", "static_assert", "_Static_assert", "enum"}
ON_DEVICE = {"__device__", "__global__"}
ATTRIBUTES_ON_DEVICE = {"device", "global"}  # in clang's words


class Function(NamedTuple):
    name: str
    line: int
    on_device: bool


class Reader:
    """Declarations outside of functions. Of C++ it knows what stands in headers: scopes, classes,
    templates, operators, attributes, pointers to functions. Bodies and initialisers are left out."""

    def __init__(self, text):
        self.tokens, self.lines, self.partner, self.found = [], [], {}, []
        line, open_at = 1, []
        for match in TOKEN.finditer(text):
            token = match[0]
            if match["skip"] is None:
                if token in CLOSING:
                    open_at.append(len(self.tokens))
                elif token in CLOSING.values():
                    if not open_at or CLOSING[self.tokens[open_at[-1]]] != token:
                        raise ValueError(f"line {line}: {token} closes nothing")
                    self.partner[open_at.pop()] = len(self.tokens)
                self.tokens.append(token)
                self.lines.append(line)
            line = int(match["marker"]) - 1 if match["marker"] else line + token.count("\n")
        if open_at:
            raise ValueError(f"line {self.lines[open_at[-1]]}: {self.tokens[open_at[-1]]} is not closed")
        self.scope(0, len(self.tokens))

    def scope(self, begin, end):
        head, at = [], begin  # head: where the declaration's tokens are, of a bracket the opening one
        while at < end:
            token = self.tokens[at]
            if token == "{":
                head = self.braces(head, at)
            elif token == ";":
                self.function(head)
                head = []
            elif token == ":" and head and self.tokens[head[-1]] in ("public", "private", "protected"):
                head = []
            else:
                head.append(at)
            at = self.partner.get(at, at) + 1

    def braces(self, head, at):
        """What is left of the declaration behind these braces."""
        words = [self.tokens[i] for i in head]
        inside = at + 1, self.partner[at]
        language = len(words) == 2 and words[0] == "extern" and words[1].startswith('"')
        if language or "namespace" in words[:2]:
            self.scope(*inside)
            return []
        if self.function(head):
            return []
        if {"struct", "class", "union"} & set(words) and "=" not in words:
            self.scope(*inside)
        return head

    def declarator(self, head):
        """Where the name in front of the parameters is; None where the declaration has none."""
        depth, before, at = 0, None, 0
        while at < len(head):
            i = head[at]
            token = self.tokens[i]
            if token == "operator":
                return i
            if token in TAKE_PARENTHESES:
                at += at + 1 < len(head) and self.tokens[head[at + 1]] == "("
            elif token in "<>":
                depth += 1 if token == "<" else -1
            elif depth == 0 and token == "=":
                return None
            elif depth == 0 and token == "(":
                return before if self.tokens[i + 1] not in "*&" else self.inner_name(i)
            elif depth == 0 and token != "[":
                before = i
            at += 1
        return None

    def inner_name(self, i):
        """f in (*f(int))(int); None in (*pointer)(int)."""
        for k in range(i + 1, self.partner[i] - 1):
            if self.tokens[k].isidentifier() and self.tokens[k + 1] == "(":
                return k
        return None

    def function(self, head):
        """Notes the function that the head declares; tells whether there is one."""
        words = [self.tokens[i] for i in head]
        name = None if NO_FUNCTIONS & set(words[:1]) else self.declarator(head)
        if name is None:
            return False
        if words[-2:] not in (["=", "default"], ["=", "delete"]):
            on_device = not ON_DEVICE.isdisjoint(words) or not ATTRIBUTES_ON_DEVICE.isdisjoint(
                word for i in head if self.tokens[i] == "__attribute__"
                for word in self.tokens[i + 1:self.partner.get(i + 1)])
            self.found.append(Function(self.tokens[name], self.lines[name], on_device))
        return True


def functions(text):
    """Each function that the text declares or defines, outside of other functions' bodies."""
    return Reader(text).found
