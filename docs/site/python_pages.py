"""Writes the pages of the Python interface from the sources and their docstrings: nothing is imported but
memopt/rules.py, which has the text and the arguments of the optimizers. So neither the library nor
torch need be there.

A page has the names of its module's __all__, or its public functions and classes. Methods and
attributes that come from a class without a page are listed with the class that inherits them. A
docstring is text with `code`, roles of Sphinx, indented code, lists of "- ", and sections that napoleon reads.
"""
import ast
import copy
import importlib
import inspect
import pathlib
import re
import sys
import textwrap
import types

import rst
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACES = [ROOT / "bindings" / "python", ROOT / "extras" / "tools" / "python", ROOT / "extras" / "planner" / "python"]
#: The pages. What a module takes from one that comes before it is on that one's page.
MODULES = ("memopt.optim", "memopt", "memopt.torch.optim", "memopt.torch", "memopt.torch.blocks", "memopt.torch.bnb",
           "memopt.torch.sharing", "memopt.torch.deepspeed", "memopt.torch.monitor", "memopt.plan",
           "memopt.tools")  # fmt: skip
INLINE = re.compile(r":[a-z]+:`([^`]+)`|``(.+?)``|`([^`\n]+)`", re.S)
NAPOLEON = Config()


class Module:
    """A module's source."""

    known = {}

    def __init__(self, name, path):
        self.name, self.path = name, path
        text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(text)
        #: Of a class ("" for none) and a name: the lines with #: before or behind it.
        self.comments = ModuleAnalyzer.for_string(text, name).find_attr_docs()

    @classmethod
    def named(cls, name):
        """The module of this name; None if it is not ours."""
        if name not in cls.known:
            stem = name.replace(".", "/")
            paths = [place / (stem + end) for place in PLACES for end in (".py", "/__init__.py")]
            path = next(filter(pathlib.Path.is_file, paths), None)
            cls.known[name] = cls(name, path) if path else None
        return cls.known[name]

    def public(self):
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                return ast.literal_eval(node.value)
        names = [name for node in self.tree.body for name in self.defined(node)]
        return [name for name in names if not name.startswith("_")]

    @staticmethod
    def defined(node):
        """The classes and functions that a statement defines: several where it assigns to several names."""
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            return [node.name]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            return [x.id for x in node.targets[0].elts]
        return []

    def find(self, name):
        """Where a name is defined: the module and the node."""
        found = None
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name) or alias.name == "*":
                        found = self.source(node, name if alias.name == "*" else alias.name) or found
        for node in self.tree.body:
            targets = getattr(node, "targets", ())
            names = [x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)]
            if getattr(node, "name", None) == name or name in names:
                found = self, node
        return found

    def source(self, node, name):
        """What an import brings: a name of a module."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        base = ".".join(filter(None, [package if node.level else "", node.module]))
        module = Module.named(base)
        return module and module.find(name)


def optimizers():
    """What memopt/rules.py says of a class, its arguments and its text: a function of its name, its docstring
    and its module. None if it is no optimizer."""
    package = types.ModuleType("memopt")  # without its __init__, which loads the library
    package.__path__ = [str(PLACES[0] / "memopt")]
    sys.modules["memopt"] = package
    rules = importlib.import_module("memopt.rules")

    class Base:
        def __init_subclass__(cls, **_):
            pass

    def described(name, text, module):
        if name in rules.RULES:
            rule, states = rules.RULES[name], "fp32"
        else:
            match = re.fullmatch(r"(\w+?)(8bit|4bit|Bf16)", name)
            if not match or match[1] not in rules.RULES:
                return None
            rule, states = rules.RULES[match[1]], match[2].lower()
            text = rules.variant(type(match[1], (Base,), {}), states).__doc__
        call = (rules.call_of_core if module == "memopt.optim" else rules.call_of_torch)(rule, states)
        every = inspect.signature(rules.construct("", call, None)).parameters.values()
        words = []
        for p in list(every)[1:]:
            words += ["*"] if p.kind is p.KEYWORD_ONLY and "*" not in words else []
            words.append(str(p.replace(annotation=p.empty)))
        return "(%s)" % ", ".join(words), rules.described(rule, text or rule.text, call)

    return described


class Pages:
    """All pages, and where each public name is."""

    def __init__(self):
        self.optimizer = optimizers()
        self.places = {}  # of a definition: its full name
        self.names = {}  # of a short name: the first full name
        self.own, self.others = {}, {}  # of a module: names on its page, and names on earlier pages
        for module in map(Module.named, MODULES):
            self.own[module.name], self.others[module.name] = [], []
            for name in module.public():
                found = module.find(name)
                if found is None:
                    raise SystemExit("%s: where is %s defined?" % (module.name, name))
                full, key = "%s.%s" % (module.name, name), (name, id(found[1]))
                if key in self.places:
                    self.others[module.name].append((name, self.places[key]))
                else:
                    self.places[key] = full
                    self.names.setdefault(name, full)
                    self.own[module.name].append((name, *found))
        self.every = set(self.places.values())

    # --- text -----------------------------------------------------------------------------------------

    def link(self, text, scope):
        """Code, as a link where it is the name of something on a page."""
        name = text.rstrip("()")
        elsewhere = self.names.get(name) if name[:1].isupper() else None
        for full in (name, "%s.%s" % (scope, name), elsewhere):
            if full in self.every:
                return rst.role("py:obj", text, full)
        return rst.code(text)

    def inline(self, text, scope):
        parts, end = [], 0
        for found in INLINE.finditer(text):
            parts.append(rst.plain(text[end : found.start()]))
            words = found[1] or found[2] or found[3]
            parts.append(self.link(" ".join(words.split()), scope))
            end = found.end()
        return "".join([*parts, rst.plain(text[end:])])

    def prose(self, text, scope):
        """A docstring."""
        lines, parts = [], []
        for part in re.split(r"\n[ \t]*\n", inspect.cleandoc(text or "")):
            if parts and part.startswith("    ") and parts[-1].startswith("    "):
                part = parts.pop() + "\n\n" + part  # an empty line in code
            parts.append(part)
        for part in parts:
            if part.startswith("    "):
                lines += rst.directive("code-block", "python", textwrap.dedent(part).split("\n"))
            else:
                text = self.inline(part, scope).replace("\n- ", "\n\n- ")
                lines += [*GoogleDocstring(text, NAPOLEON).lines(), ""]
        return lines

    # --- objects --------------------------------------------------------------------------------------

    def signature(self, node, bound):
        args = copy.deepcopy(node.args)
        if bound:
            del args.args[0]
        for arg in ast.walk(args):
            if isinstance(arg, ast.arg):
                arg.annotation = self.unquoted(arg.annotation)
        back = self.unquoted(node.returns) if node.name != "__init__" else None
        back = " -> " + ast.unparse(back) if back else ""
        return "(%s)%s" % (ast.unparse(args), back)

    @staticmethod
    def unquoted(kind):
        """A type that may be written as text."""
        return ast.parse(kind.value, mode="eval").body if isinstance(getattr(kind, "value", None), str) else kind

    def classes(self, module, node):
        """A class and those of its bases that have no page of their own."""
        yield module, node
        for base in node.bases:
            found = module.find(ast.unparse(base))
            if found and isinstance(found[1], ast.ClassDef) and (found[1].name, id(found[1])) not in self.places:
                yield from self.classes(*found)

    def klass(self, name, module, node, scope):
        if not isinstance(node, ast.ClassDef):  # made by rules.variant()
            signature, text = self.optimizer(name, None, scope)
            return rst.directive("py:class", name + signature, self.prose(text, scope))
        members, seen, signature = [], set(), ""
        for owner, part in self.classes(module, node):
            for member, lines in self.members(owner, part, scope):
                if member == "__init__":
                    signature = signature or lines
                elif member not in seen:
                    members += lines
                seen.add(member)
        text = ast.get_docstring(node)
        signature, text = self.optimizer(name, text, scope) or (signature, text)
        lines = self.prose(text, scope)
        bases = [x for x in map(ast.unparse, node.bases) if not x.startswith("_")]
        if bases:
            lines += ["Bases: " + ", ".join(self.link(x, scope) for x in bases) + ".", ""]
        return rst.directive("py:class", name + signature, lines + members)

    def members(self, module, node, scope):
        """Names and text of what a class has; of __init__ the arguments, and the attributes with a comment."""
        for item in node.body:
            if not isinstance(item, ast.FunctionDef):
                yield from self.attribute(module, node, item, scope)
            elif item.name == "__init__":
                yield "__init__", self.signature(item, True)
                for inner in ast.walk(item):
                    yield from self.attribute(module, node, inner, scope)
            elif not item.name.startswith("_"):
                yield from self.method(item, scope)

    def attribute(self, module, node, item, scope):
        """The one that a statement makes: a name of the class, or self.name with a comment."""
        target = item.target if isinstance(item, ast.AnnAssign) else getattr(item, "targets", [None])[0]
        name = getattr(target, "id", getattr(target, "attr", "_"))
        about = module.comments.get((node.name, name), ())
        if name.startswith("_") or not (isinstance(target, ast.Name) and item in node.body or about):
            return
        value, options = ast.unparse(item.value) if item.value else "", {}
        if isinstance(item, ast.AnnAssign):
            options["type"] = ast.unparse(item.annotation)
        elif re.fullmatch(r"\w+|'\w*'", value):
            options["value"] = value
        yield name, rst.directive("py:attribute", name, self.prose("\n".join(about), scope), **options)

    def method(self, node, scope):
        marks = [ast.unparse(x) for x in node.decorator_list]
        about = self.prose(ast.get_docstring(node), scope)
        if "property" in marks:
            options = {"type": ast.unparse(node.returns)} if node.returns else {}
            yield node.name, rst.directive("py:property", node.name, about, **options)
            return
        static = "staticmethod" in marks
        options = {x: "" for x in ("classmethod", "staticmethod") if x in marks}
        words = node.name + self.signature(node, not static)
        yield node.name, rst.directive("py:method", words, about, **options)

    def thing(self, name, module, node, scope):
        if isinstance(node, ast.FunctionDef):
            about = self.prose(ast.get_docstring(node), scope)
            return rst.directive("py:function", name + self.signature(node, False), about)
        if isinstance(node, ast.ClassDef) or self.optimizer(name, None, scope):
            return self.klass(name, module, node, scope)
        return rst.directive("py:data", name, self.prose("\n".join(module.comments.get(("", name), ())), scope))

    def page(self, name):
        lines = [*rst.title(name), *rst.directive("py:module", name)]
        lines += self.prose(ast.get_docstring(Module.named(name).tree), name)
        for word, module, node in sorted(self.own[name], key=lambda x: x[0].lower()):
            lines += self.thing(word, module, node, name)
        if self.others[name]:
            links = ", ".join(rst.role("py:obj", word, full) for word, full in self.others[name])
            lines += [*rst.title("Also here", "-"), "Described on other pages: %s." % links]
        return lines


def write(out):
    pages = Pages()
    names = sorted(MODULES)
    for name in names:
        rst.write(out / "python" / (name + ".rst"), pages.page(name))
    lines = rst.title("Python interface")
    lines += ["``import memopt`` needs only Python's standard library, ``memopt.torch`` PyTorch.", ""]
    for name in names:
        about = ast.get_docstring(Module.named(name).tree) or ""
        lines += [":doc:`/python/%s`" % name, *rst.indented(pages.inline(about.split("\n\n")[0], name).split("\n"))]
    lines += ["", *rst.directive("toctree", "", ["/python/" + name for name in names], hidden="")]
    rst.write(out / "python" / "index.rst", lines)
