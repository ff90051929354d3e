"""Checks the order of dependency between the folders, and a few rules of the whole library.

    layers.py ROOT

Order: include/ is used by all; lib/base by the rest of lib/; kernels/ know only themselves;
lib/device knows base and kernels; a primitive (any other folder of lib/) knows itself, base,
kernels, the public headers and lib/device/device.h, but neither a back end nor another primitive's
insides. lib/tools and lib/plan are libraries of their own: they know themselves, base and the
public headers.

Python: memopt is below memopt.tools and memopt.plan, which do not know each other; memopt.torch may
use memopt.tools, and memopt.cli all of them. No modules import each other in a circle, be it inside
functions or for type checkers only.

Rules: one file calls malloc and its family (it is the fault point of the torture tests); nothing
prints, exits or aborts; one file takes mutexes (it keeps log callbacks out of locks); a primitive has
no #if of a back end; no files use each other's functions or variables in a circle.
"""
import ast
import pathlib
import re
import sys

ALLOCATION = re.compile(
    r"(?<![\w.>])(malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|memalign|"
    r"valloc|strdup|strndup|asprintf|vasprintf|getline|open_memstream)\s*\("
)
ENDING = re.compile(
    r"(?<![\w.>])(abort|exit|_exit|_Exit|quick_exit|assert|printf|vprintf|puts|putchar|fprintf|"
    r"vfprintf|fputs|perror|psignal)\s*\("
)
LOCKING = re.compile(r"(?<![\w.>])(pthread_mutex_(?:try|timed)?(?:un)?lock)\s*\(")
BACK_END = re.compile(r"#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|HIP|NVCC|ROCM|AMDGPU)")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

NAME = r"(?:mo|memopt)_\w+"
DEFINITION = re.compile(
    rf"^\w[\w \t*]*?[ *]({NAME})(?:\s*\((?:[^;{{}}()]|\([^()]*\))*\)\s*\{{|(?:\[[^]]*\])?\s*[;=])", re.M
)

ALLOCATES = {"lib/base/memory.c"}
PRINTS = {"lib/base/log.c"}  # the default sink, when MEMOPT_LOG asks for it
LOCKS = {"lib/base/lock.h", "lib/tools/lock.h"}
HOOKS = "include/memopt/experimental/hooks.h"
LIBRARIES = ("tools", "plan")  # beside libmemopt, on its public interface
PYTHON = "bindings/python/memopt"
BELOW = {  # the packages that a package may import
    "": set(),
    "tools": {""},
    "plan": {""},
    "torch": {"", "tools"},
    "cli": {"", "tools", "plan", "torch"},
}
DEVICE_INTERFACE = "lib/device/device.h"
# A checkpointed region of the planner's tape runs a tape of its own within a backward.
RECURSION = {("lib/plan/tape/backward.c", "lib/plan/tape/region.c")}
SOURCES = {".c", ".h", ".cc", ".cu", ".inc"}
MADE = "kernels/generated/"  # headers that a build makes


def without_text(source):
    """The source with comments and literals blanked, line numbers kept."""
    return NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)


def resolve(root, path, name):
    """The project file an #include names, or None for a system header."""
    for base in (path.parent, root / "lib", root / "include", root):
        candidate = base / name
        if candidate.is_file():
            return candidate.resolve().relative_to(root).as_posix()
    return None


def may_include(source, target):
    """None where `source` may include `target`, else why not."""
    from_parts, to_parts = source.split("/"), target.split("/")
    if from_parts[0] == "include":
        return None if to_parts[0] == "include" else "a public header knows public headers only"
    if from_parts[0] == "kernels":
        return None if to_parts[0] == "kernels" else "kernels know only themselves"
    layer = from_parts[1]
    if to_parts[0] == "include":
        if target == HOOKS:
            return None
        lower = {"base": {"base.h"}, "device": {"base.h", "device.h"}}.get(layer)
        if lower is not None and to_parts[-1] not in lower:
            return f"lib/{layer} is below what {target} declares"
        return None
    if layer in LIBRARIES and to_parts[:2] not in (["lib", layer], ["lib", "base"]):
        return f"lib/{layer} is a library on the public interface"
    if to_parts[0] == "kernels":
        return "lib/base is below the kernels" if layer == "base" else None
    if to_parts[0] != "lib":
        return "the library includes nothing outside include/, lib/ and kernels/"
    if to_parts[1] in (layer, "base"):
        return None
    if layer in ("base", "device"):
        return f"lib/{layer} is below lib/{to_parts[1]}"
    if to_parts[1] == "device":
        return None if target == DEVICE_INTERFACE else "primitives know only " + DEVICE_INTERFACE
    return "primitives know each other by their public headers only"


def problems(root):
    """Yields 'file:line: what is wrong'."""
    for path in sorted(p for top in ("include", "lib", "kernels") for p in (root / top).rglob("*")):
        if path.suffix not in SOURCES:
            continue
        name = path.relative_to(root).as_posix()
        source = path.read_text(encoding="utf-8")
        code = without_text(source)

        def line(match):
            return source.count("\n", 0, match.start()) + 1

        for match in INCLUDE.finditer(source):
            target = resolve(root, path, match.group(2))
            if target is None:
                if match.group(1) == '"' and not match.group(2).startswith(MADE):
                    yield f"{name}:{line(match)}: \"{match.group(2)}\" is not a file of the project"
                continue
            reason = may_include(name, target)
            if reason:
                yield f"{name}:{line(match)}: includes {target}: {reason}"
        for pattern, allowed, reason in (
            (ALLOCATION, ALLOCATES, "host memory comes from lib/base/memory.h only"),
            (ENDING, PRINTS, "the library neither prints nor ends the program"),
            (LOCKING, LOCKS, "locks are taken through lib/base/lock.h or lib/tools/lock.h"),
        ):
            for match in pattern.finditer(code) if name not in allowed else ():
                yield f"{name}:{line(match)}: calls {match.group(1)}: {reason}"
        if re.match(r"lib/(?!base/|device/|tools/monitor/)", name):
            for match in BACK_END.finditer(code):
                yield f"{name}:{line(match)}: a primitive has no #if of a back end"


def python_imports(root):
    """The modules of the Python package by file, each with those that it imports and where."""
    top = root / PYTHON
    modules = {path.relative_to(root).with_suffix("").as_posix(): path for path in top.rglob("*.py")}
    for name, path in modules.items():
        found = {}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = pathlib.PurePosixPath(name).parents[node.level - 1]
            base = base.joinpath(*(node.module or "").split(".")) if node.module else base
            for one in node.names:
                places = (base / one.name, base / one.name / "__init__", base, base / "__init__")
                target = next((p.as_posix() for p in places if p.as_posix() in modules), None)
                if target not in (None, name):
                    found.setdefault(target, node.lineno)
        yield name, found


def python_problems(root):
    """Yields 'file:line: what is wrong' of the Python package."""
    graph = dict(python_imports(root))

    def package(name):
        parts = name[len(PYTHON) + 1 :].split("/")
        if parts == ["__main__"]:
            return "cli"
        return parts[0] if len(parts) > 1 and parts[0] in BELOW else ""

    def reach(start):
        seen, waiting = set(), [start]
        while waiting:
            new = set(graph[waiting.pop()]) - seen
            seen |= new
            waiting += new
        return seen

    for name, found in sorted(graph.items()):
        for target, line in found.items():
            ours, theirs = package(name), package(target)
            if theirs != ours and theirs not in BELOW[ours]:
                yield f"{name}.py:{line}: imports {target}: memopt.{theirs} is not below this package"
            if name in reach(target):
                yield f"{name}.py:{line}: imports {target}, which leads back here"


def circles(root):
    """Yields 'file: uses file ..., and so on back to itself', once for each circle."""
    code = {
        path.relative_to(root).as_posix(): without_text(path.read_text(encoding="utf-8"))
        for top in ("lib", "kernels")
        for path in sorted((root / top).rglob("*.c"))
    }
    owner = {}
    for name, text in code.items():
        owner.update((found.group(1), name) for found in DEFINITION.finditer(text)
                     if not found.group().startswith(("static", "extern", "typedef")))
    uses = {
        name: {owner[word] for word in re.findall(rf"\b{NAME}", text) if word in owner} - {name}
        for name, text in code.items()
    }
    done, way = set(), []

    def walk(name):
        way.append(name)
        for other in sorted(uses[name]):
            if other in way:
                circle = way[way.index(other):]
                if tuple(sorted(circle)) not in RECURSION:
                    yield f"{other}: is in a circle: " + " -> ".join([*circle, other])
            elif other not in done:
                yield from walk(other)
        done.add(way.pop())

    for name in code:
        if name not in done:
            yield from walk(name)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1]).resolve()
    found = [*problems(root), *circles(root), *python_problems(root)]
    print("\n".join(found) if found else "the folders depend on each other in one direction only")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
