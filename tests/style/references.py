"""Checks that what the documents name is there: files, C names, settings, options of the command.

    references.py ROOT

In every Markdown file of the repository: a relative link leads to a file, and to a heading of it
where it names one; a path in code that begins with one of our folders exists (wildcards and `<…>`
match something); a `memopt_…` is in the C sources and a `MEMOPT_…` in some source; an `--option`
that a line of code gives to `memopt` is in the command's own; a function or table in a step of
docs/reading.md is in a file that the step links to. The change log speaks of the past:
only its links are looked at. And every page is at most two clicks from README.md, every option of the
build and variable of the environment is on some page of the guide, and the list of attempts at the
limit is as long as the allocator's.
"""
import pathlib
import re
import sys

FOLDERS = ("include", "lib", "kernels", "bindings", "examples", "tests", "docs", "cmake", "pkgconfig",
           "extras")
NOT_OURS = {"build", ".venv", ".git", "node_modules", "__pycache__", ".pytest_cache"}
SOURCES = {".c", ".h", ".cc", ".cu", ".py", ".cmake", ".in", ".txt", ".map", ".json", ".sh", ".toml"}
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.M)
CLICKS = 2
SETTING = re.compile(
    r"^\s*option\((MEMOPT_\w+)|^\s*set\((MEMOPT_\w+) .* CACHE (?!INTERNAL)"
    r"|getenv\(\"(MEMOPT_\w+)|environ\.get\(\"(MEMOPT_\w+)|ENVIRONMENT = \"(MEMOPT_\w+)",
    re.M,
)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.S)
PATH = re.compile(r"(?<![\w./$~<>{-])(?:%s)/[\w./*<>-]*[\w*>/]" % "|".join(FOLDERS))
NAME = re.compile(r"(?<![\w/.-])(?:memopt_\w*[a-z0-9]|MEMOPT_\w*[A-Z0-9])(?![\w*/.-]*[*…/])")
COMMAND = re.compile(r"^\s*(?:\$ )?memopt [a-z].*", re.M)
CALLED = re.compile(r"`(\w+)[(\[]")
STEP = re.compile(r"\d+\. ")
OPTION = re.compile(r"(?<!\S)--[a-z][\w-]*")


def files(root):
    """Everything that is kept, build folders and caches left out."""
    for path in sorted(root.iterdir()):
        if path.name in NOT_OURS:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from files(path)
        elif path.is_file():
            yield path


def sources_text(root, under=""):
    """The text of all sources below a folder."""
    return "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in files(root / under)
        if path.suffix in SOURCES or not path.suffix
    )


def targets(document, text):
    """Of each link into the repository: how it is written, its file and its heading ("": none)."""
    for target, heading in LINK.findall(CODE.sub("", text)):
        if not re.match(r"[a-z]+:|/", target):
            written = target + ("#" + heading if heading else "")
            yield written, document.parent / target if target else document, heading


def anchors(text):
    """What a page's headings are called in links."""
    for heading in HEADING.findall(re.sub(r"```.*?```", "", text, flags=re.S)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        yield re.sub(r"[^\w -]", "", words).replace(" ", "-")


def links(document, text):
    """Links that lead nowhere."""
    for written, path, heading in targets(document, text):
        if not path.exists():
            yield "the link (%s) leads nowhere" % written
        elif heading and heading not in anchors(path.read_text(encoding="utf-8")):
            yield "the link (%s) names no heading there" % written


def reached(start):
    """The pages that are at most so many clicks away. Of a folder its README.md is shown."""
    found, latest = {start}, {start}
    for _ in range(CLICKS):
        new = set()
        for page in latest:
            for _, path, _ in targets(page, page.read_text(encoding="utf-8")):
                path = path.resolve()
                path = path / "README.md" if path.is_dir() else path
                if path.suffix == ".md" and path.exists():
                    new.add(path)
        latest = new - found
        found |= latest
    return found


def paths(root, code):
    """Paths of ours that do not exist; a program is there where its source is."""
    for path in PATH.findall(code):
        pattern = re.sub(r"<[^>]*>", "*", path).rstrip("/")
        if not any(root.glob(pattern)) and not any(root.glob(pattern + ".*")):
            yield "there is no %s" % path


def names(code, known):
    """Names of the C interface and settings that no source knows."""
    for name in sorted(set(NAME.findall(code)) - known):
        yield "no source has %s" % name


def options(code, known):
    """Options of the command that it does not have."""
    for line in COMMAND.findall(code):
        for option in OPTION.findall(line.split(" -- ")[0].split("#")[0]):
            if option not in known:
                yield "memopt has no %s" % option


def linked(document, text):
    """The words of the files that a piece of a page links to."""
    found = {path for _, path, _ in targets(document, text) if path.is_file()}
    return {word for path in found for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def walks(document, text):
    """Functions and tables that are not where a page of walks says: of a step in the step's files,
    of other text in those of its section."""
    for section in re.split(r"^## ", text, flags=re.M):
        everything = linked(document, section)
        for part in re.split(r"\n\n|\n(?=\d+\. )", section):
            known = linked(document, part) if STEP.match(part) else everything
            for name in sorted(set(CALLED.findall(part)) - known):
                yield "no file linked there has %s" % name


def untold(root):
    """Settings that the guide does not have."""
    places = [root / name for name in ("CMakeLists.txt", "cmake", "lib", "bindings/python/memopt")]
    sources = [path for place in places if place.is_file() or place.is_dir()
               for path in ([place] if place.is_file() else files(place)) if path.suffix in SOURCES]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    settings = {name for found in SETTING.findall(text) for name in found if name}
    guide = "\n".join(page.read_text(encoding="utf-8") for page in root.glob("docs/guide/*.md"))
    for name in sorted(settings - set(re.findall(r"MEMOPT_\w+", guide))):
        yield "docs/guide: no page has the setting %s" % name


def attempts(root):
    """The guide lists as many attempts at the limit as the allocator makes."""
    names = ("lib/allocator/front/pressure.c", "docs/guide/allocator.md")
    source, page = (root / name for name in names)
    if not source.is_file():
        return
    made = re.search(r"attempts\[\] = \{(.*?)\n\};", source.read_text(encoding="utf-8"), re.S)[1]
    told = page.read_text(encoding="utf-8").split("makes these attempts")[1].split("Then the call")[0]
    counts = len(re.findall(r"^    \w+,", made, re.M)), len(re.findall(r"^\d+\. ", told, re.M))
    if counts[0] != counts[1]:
        yield "docs/guide/allocator.md: %d attempts are made, %d are listed" % counts


def check(root):
    """What is wrong, as "file: what" lines."""
    known = set(re.findall(r"memopt_\w+|MEMOPT_\w+", sources_text(root)))
    verbs = [root / "bindings/python/memopt/cli", *root.glob("extras/*/python/memopt/cli")]
    taken = set(re.findall(r"--[a-z][\w-]*", "".join(sources_text(folder) for folder in verbs if folder.is_dir())))
    taken |= {"--help", "--version"}
    yield from untold(root)
    yield from attempts(root)
    near = reached(root / "README.md")
    for document in files(root):
        if document.suffix != ".md":
            continue
        text = document.read_text(encoding="utf-8")
        found = [*links(document, text)]
        if document == root / "docs" / "reading.md":
            found += walks(document, text)
        if document not in near:
            found.append("is more than %d clicks from README.md" % CLICKS)
        if document.name != "CHANGELOG.md":
            code = "\n".join(span.strip("`") for span in CODE.findall(text))
            found += [*paths(root, code), *names(code, known), *options(code, taken)]
        for what in dict.fromkeys(found):
            yield "%s: %s" % (document.relative_to(root).as_posix(), what)


if __name__ == "__main__":
    wrong = list(check(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(wrong) or "every name in the documents is there")
    sys.exit(bool(wrong))
