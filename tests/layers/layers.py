"""Checks the order of dependency between the folders, and a few rules of the whole library.

    layers.py ROOT [CORE [MORE...]]

Order: include/ is used by all; lib/base by the rest of lib/; kernels/ know only themselves;
lib/race knows base; lib/device knows base, kernels and the public header of lib/race;
lib/allocator/blocks knows nothing of the allocator's other folders, by includes and by calls; a primitive (any other folder of lib/) knows itself, base,
kernels, the public headers, lib/device/device.h and lib/allocator/allocator.h, but neither a back end nor
another primitive's insides. With CORE, ROOT is a library built on the one there: it knows itself, CORE's public headers
and its lib/base; its Python knows that of MORE too.

Python: memopt is below memopt.torch, and both are below memopt.cli. A package built on them may use all of
theirs. No modules import each other in a circle, be it inside functions or for type
checkers only. Nothing of the library knows what is built on it.

Rules: one file calls malloc and its family (it is the fault point of the torture tests); nothing
prints, exits or aborts; one file takes mutexes (it keeps log callbacks out of locks); a primitive has
no #if of a back end; no files use each other's functions or variables in a circle, where x.c is one with the
inline functions of x.h.
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
    r"vfprintf|dprintf|fputs|fputc|putc|perror|psignal|__builtin_trap)\s*\("
)
LOCKING = re.compile(r"(?<![\w.>])(pthread_mutex_(?:try|timed)?(?:un)?lock)\s*\(")
BACK_END = re.compile(r"#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|HIP|NVCC|ROCM|AMDGPU)")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

NAME = r"(?:mo|memopt)_\w+"
DEFINITION = re.compile(
    rf"^\w[\w \t*]*?[ *]({NAME})(?:\s*\((?:[^;{{}}()]|\([^()]*\))*\)\s*\{{|(?:\[[^]]*\])?\s*[;=])", re.M
)

INLINE = re.compile(r"^static inline [^;{}]*\{$.*?^\}", re.M | re.S)

ALLOCATES = {"lib/base/memory.c"}
PRINTS = {"lib/base/log.c"}  # the default sink, when MEMOPT_LOG asks for it
LOCKS = {"lib/base/lock.h"}
HOOKS = "include/memopt/experimental/hooks.h"
PYTHON = ("bindings/python/memopt", "python/memopt")
BELOW = {  # the packages that a package may import
    "": set(),
    "torch": {""},
    "cli": {"", "torch"},
}
# What is built on the library, which nothing in these folders knows; the wheel carries it along.
BUILT_ON_IT = re.compile(r"\bextras/|memopt[-.](tools|plan)\b")
NAMES_THEM = ("tests/layers/", "tests/mutants/", "tests/style/", "tests/abi/update", "tests/tools/python", "tests/docs/")
KNOWING_NOTHING = ("include", "lib", "kernels", "cmake", "examples", "tests", "bindings/python/memopt")
DEVICE_INTERFACE = "lib/device/device.h"
ALLOCATOR_INTERFACE = "lib/allocator/allocator.h"  # beside its public headers
LOWEST = "lib/allocator/blocks/"  # uses no other part of lib/allocator
# A checkpointed region of the planner's tape runs a tape of its own within a backward.
RECURSION = {("lib/tape/backward", "lib/tape/region")}
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


def is_of_core(core, name):
    """Whether a library built on CORE may include this of it."""
    return core is not None and ((core / "include" / name).is_file() or
                                 name.startswith("base/") and (core / "lib" / name).is_file())


def may_include(source, target, core):
    """None where `source` may include `target`, else why not."""
    if core is not None:
        return None
    from_parts, to_parts = source.split("/"), target.split("/")
    if from_parts[0] == "include":
        return None if to_parts[0] == "include" else "a public header knows public headers only"
    if from_parts[0] == "kernels":
        return None if to_parts[0] == "kernels" else "kernels know only themselves"
    layer = from_parts[1]
    if to_parts[0] == "include":
        if target == HOOKS:
            return None
        lower = {"base": {"base.h"}, "race": {"base.h", "race.h"},
                 "device": {"base.h", "device.h", "race.h"}}.get(layer)
        if lower is not None and to_parts[-1] not in lower:
            return f"lib/{layer} is below what {target} declares"
        return None
    if to_parts[0] == "kernels":
        return "lib/base is below the kernels" if layer == "base" else None
    if to_parts[0] != "lib":
        return "the library includes nothing outside include/, lib/ and kernels/"
    if source.startswith(LOWEST) and target.startswith("lib/allocator/"):
        return None if target.startswith(LOWEST) else f"{LOWEST} is below it"
    if to_parts[1] in (layer, "base"):
        return None
    if layer in ("base", "race", "device"):
        return f"lib/{layer} is below lib/{to_parts[1]}"
    if to_parts[1] == "device":
        return None if target == DEVICE_INTERFACE else "primitives know only " + DEVICE_INTERFACE
    return None if target == ALLOCATOR_INTERFACE else "primitives know each other by their public headers only"


def problems(root, core=None):
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
                if match.group(1) == '"' and not match.group(2).startswith(MADE) and not is_of_core(
                        core, match.group(2)):
                    yield f"{name}:{line(match)}: \"{match.group(2)}\" is not a file of the project"
                continue
            reason = may_include(name, target, core)
            if reason:
                yield f"{name}:{line(match)}: includes {target}: {reason}"
        for pattern, allowed, reason in (
            (ALLOCATION, ALLOCATES, "host memory comes from lib/base/memory.h only"),
            (ENDING, PRINTS, "the library neither prints nor ends the program"),
            (LOCKING, LOCKS, "locks are taken through lib/base/lock.h"),
        ):
            for match in pattern.finditer(code) if name not in allowed else ():
                yield f"{name}:{line(match)}: calls {match.group(1)}: {reason}"
        if re.match(r"lib/(?!base/|device/|monitor/)", name):
            for match in BACK_END.finditer(code):
                yield f"{name}:{line(match)}: a primitive has no #if of a back end"


def names_of_others(root):
    """Yields 'file:line: what is wrong' where the library names what is built on it."""
    for top in KNOWING_NOTHING:
        for path in sorted((root / top).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in (".pyc", ".svg", ".png") or not path.is_file() or name.startswith(NAMES_THEM):
                continue
            for number, text in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
                if BUILT_ON_IT.search(text):
                    yield f"{name}:{number}: names what is built on the library"


def python_modules(root):
    """The modules of a package by their place in it."""
    for top in PYTHON:
        for path in (root / top).rglob("*.py"):
            yield path.relative_to(root / top).with_suffix("").as_posix(), path


def python_imports(root, below):
    """The modules of the Python package by file, each with those that it imports and where."""
    own = dict(python_modules(root))
    modules = dict(pair for other in below for pair in python_modules(other))
    modules.update(own)
    for name, path in own.items():
        found = {}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = pathlib.PurePosixPath(name).parents[node.level - 1]
            base = base.joinpath(*(node.module or "").split(".")) if node.module else base
            for one in node.names:
                places = (base / one.name, base / one.name / "__init__", base, base / "__init__")
                target = next((p.as_posix() for p in places if p.as_posix() in modules), None)
                if target != name and (target in own or target is None):
                    found.setdefault(target or f"{base}/{one.name}", node.lineno)
        yield name, found


def python_problems(root, *below):
    """Yields 'file:line: what is wrong' of the Python package."""
    graph = dict(python_imports(root, below))
    place = next((top for top in PYTHON if (root / top).is_dir()), "")

    def package(name):
        parts = name.split("/")
        if parts == ["__main__"]:
            return "cli"
        return parts[0] if len(parts) > 1 and parts[0] in BELOW else ""

    def reach(start):
        seen, waiting = set(), [start]
        while waiting:
            new = set(graph.get(waiting.pop(), ())) - seen
            seen |= new
            waiting += new
        return seen

    for name, found in sorted(graph.items()):
        for target, line in found.items():
            ours, theirs = package(name), package(target)
            where = f"{place}/{name}.py:{line}: imports {target}"
            if target not in graph:
                yield f"{where}, which is not there"
            elif not below and theirs != ours and theirs not in BELOW[ours]:
                yield f"{where}: memopt.{theirs} is not below this package"
            if name in reach(target):
                yield f"{where}, which leads back here"


def uses(root):
    """The files whose functions and variables each file of lib and kernels uses. x.c and x.h are one,
    x: of a header its inline functions count."""
    bodies, owner = {}, {}
    for path in (p for top in ("lib", "kernels") for p in sorted((root / top).rglob("*.[ch]"))):
        name = path.relative_to(root).with_suffix("").as_posix()
        text = without_text(path.read_text(encoding="utf-8"))
        if path.suffix == ".h":
            text = "\n".join(INLINE.findall(text))
        bodies[name] = bodies.get(name, "") + text
        for found in DEFINITION.finditer(text):
            if path.suffix == ".h" or not found.group().startswith(("static", "extern", "typedef")):
                owner[found.group(1)] = name
    return {name: {owner[word] for word in re.findall(rf"\b{NAME}", text) if word in owner} - {name}
            for name, text in bodies.items()}


def circles(root):
    """Yields 'file: uses file ..., and so on back to itself', once for each circle, and each file
    of the allocator that LOWEST uses."""
    graph = uses(root)
    for name in sorted(graph):
        for other in sorted(graph[name]) if name.startswith(LOWEST) else ():
            if other.startswith("lib/allocator/") and not other.startswith(LOWEST):
                yield f"{name}: uses {other}: {LOWEST} is below it"
    done, way = set(), []

    def walk(name):
        way.append(name)
        for other in sorted(graph[name]):
            if other in way:
                circle = way[way.index(other):]
                if tuple(sorted(circle)) not in RECURSION:
                    yield f"{other}: is in a circle: " + " -> ".join([*circle, other])
            elif other not in done:
                yield from walk(other)
        done.add(way.pop())

    for name in graph:
        if name not in done:
            yield from walk(name)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    root, *below = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    found = [*problems(root, below[0] if below else None), *circles(root), *python_problems(root, *below)]
    found += [] if below else names_of_others(root)
    print("\n".join(found) if found else "the folders depend on each other in one direction only")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
