"""Writes the pages as Doxygen reads them.

    pages.py OUT PLACE...

The PLACEs, files and folders of this repository, hold the site's pages; OUT gets them with addresses of
the site. Doxygen names pages after the folder in which it runs, numbers headings, does not know
page.md#heading, loses the rest of a page behind a link over the end of a line, and takes a ' for the
end of code. So:

- a page is FOLDER_NAME.html, its heading FOLDER_NAME__HEADING, with HEADING as a code host has it;
- links lead there; a link that leaves the site is its text; a picture is its file's name;
- links and code are in one line (the next empty line makes up for it: line numbers stay), and code
  with a ' in it stands between two backticks;
- the -- of an option is no dash.
"""
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
FENCE = re.compile(r"(^[ \t]*```.*?^[ \t]*```[ \t]*$)", re.M | re.S)
EMPTY_LINE = re.compile(r"(\n[ \t]*(?=\n))")
CODE = r"(`+)(?!`)(?:[^`]|(?!\1)`+)+?\1(?!`)"
SPAN = re.compile(
    r"(?P<code>%s)|(?P<dashes>(?<![\w-])--(?=[a-z]))"
    r"|(?P<picture>!?)\[(?P<text>(?:`[^`]*`|!\[[^]]*\]\([^)]*\)|[^][`])*)\]\((?P<link>[^)\s]+)\)"
    % CODE.replace(r"\1", r"\2")
)
HEADING = re.compile(r"^(#+) +(.*?)[ \t]*$", re.M)


def parts_of(path):
    """The place in the site; pages of the projects beside the library are with those of the guide."""
    parts = path.relative_to(ROOT).parts
    parts = parts[parts.index("docs") + 1:]
    return parts if len(parts) > 1 else ("guide", *parts)


def page_name(path):
    """What a page's file and label are called. index.html is the front page."""
    parts = parts_of(path.with_suffix(""))
    if parts == ("guide", "index"):
        return "index"
    return "_".join(parts[:-1] if parts[-1] == "README" else parts)


def plain(heading):
    """A heading in the form of a code host's link, in the letters that Doxygen takes."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^a-z0-9_-]", "", words.replace(" ", "-"))


class Page:
    """A page of a site that has these pages."""

    def __init__(self, site, path):
        self.site = site
        self.path = path
        self.name = page_name(path)
        self.seen = {}  # how often a heading's name came so far
        self.lost = 0  # lines

    def address(self, link):
        """Of a link in the page; None where it leads out of the site."""
        if re.match(r"[a-z]+:", link):
            return link
        file, _, heading = link.partition("#")
        path = (self.path.parent / file).resolve() if file else self.path
        path = path / "README.md" if path.is_dir() else path
        if path not in self.site:
            return None
        name = page_name(path)
        return "%s.html" % name + ("#%s__%s" % (name, plain(heading)) if heading else "")

    def span(self, found):
        """Code, a link or an option's dashes, in one line."""
        whole = found.group()
        self.lost += whole.count("\n")
        if found["code"]:
            code = re.sub(r"\s*\n\s*", " ", whole)
            return "`%s`" % code if "'" in code and code[1] != "`" else code
        if found["dashes"]:
            return "\\--"
        text = SPAN.sub(self.span, re.sub(r"\s*\n\s*", " ", found["text"]))
        if found["picture"]:
            return "![%s](%s)" % (text, pathlib.PurePath(found["link"]).name)
        address = self.address(found["link"])
        return "[%s](%s)" % (text, address) if address else text

    def heading(self, found):
        marks, text = found.groups()
        name = plain(text)
        count = self.seen[name] = self.seen.get(name, -1) + 1
        label = "%s__%s" % (self.name, name + ("-%d" % count if count else ""))
        if len(marks) == 1 and len(self.seen) == 1:
            if self.name == "index":  # it needs no label
                return found.group()
            label = self.name
        return "%s %s {#%s}" % (marks, text, label)

    def paragraph(self, text):
        if all(line.startswith("    ") for line in text.strip("\n").split("\n")):
            return text  # code
        return SPAN.sub(self.span, HEADING.sub(self.heading, text))

    def text_of(self, text):
        """The page's text for Doxygen."""
        done = []
        for k, part in enumerate(FENCE.split(text)):
            if k % 2:
                done.append(part)
                continue
            for j, piece in enumerate(EMPTY_LINE.split(part)):
                if j % 2:
                    done.append(piece + "\n" * self.lost)
                    self.lost = 0
                else:
                    done.append(self.paragraph(piece))
        return "".join(done)


def pages_of(places):
    """The pages in files and folders."""
    paths = [ROOT / place for place in places]
    return {page for path in paths for page in (path.rglob("*.md") if path.is_dir() else [path])}


def main(out, places):
    site = pages_of(places)
    for path in sorted(site):
        page = out.joinpath(*parts_of(path))
        page.parent.mkdir(parents=True, exist_ok=True)
        text = Page(site, path).text_of(path.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
