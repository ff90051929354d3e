"""Checks the HTML of the built site: what a reader sees, and where the links lead.

    site_check.py SITE FOLDER...

In every page of SITE: no markup of a source (Markdown, reStructuredText, commands of Doxygen) stands in
the text; every link, picture and script is a file of SITE, with the anchor that the link names; no link
names an anchor that is a number, which depends on the order of headings; the front page leads to it in
two clicks. The search has pages for the words that readers look for. The FOLDERs (sources, build) are
named nowhere.
"""
import html.parser
import json
import pathlib
import posixpath
import re
import sys
import urllib.parse

COMMAND = re.compile(r"(?<![\w@\\.])[@\\][a-z]{2,}\b|(?<!\w):[a-z]+(?: [\w.]+)?:(?=[ `]|$)", re.M)
LEFT_OVER = re.compile(
    r"`|\]\(|\{#|\*\*\w[^*,()]*\*\*|^ *\|.*\| *$|\|-{2,}|^\.\. \w"
    r"|</?(?:table|t[hrd]|p|a|b|em|code|ul|ol|li|br|img|h\d)\b[^>]*>?",
    re.M,
)
NOT_TEXT = {"script", "style", "pre", "code", "title"}
EMPTY = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}
UNSTABLE = re.compile(r"#id\d+$")
CLICKS = 2
SOUGHT = ("8-bit", "out of memory", "rocm")
#: Words that the search leaves out: Sphinx's, of those above.
UNSOUGHT = {"out", "of", "8"}


class Page(html.parser.HTMLParser):
    """What one page shows and names."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.text = set(), [], []
        self.open, self.hidden = [], 0  # open elements, and how many of them are no text
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors.update(attrs[key] for key in ("id", "name") if attrs.get(key))
        self.links += [attrs[key] for key in ("href", "src") if attrs.get(key)]
        if tag in EMPTY:
            return
        hides = tag in NOT_TEXT
        self.open.append((tag, hides))
        self.hidden += hides

    def handle_endtag(self, tag):
        if tag not in [name for name, _ in self.open]:
            return
        while self.open:
            name, hides = self.open.pop()
            self.hidden -= hides
            if name == tag:
                return

    def handle_data(self, data):
        if not self.hidden:
            self.text.append(data)


def raw(page):
    """What the reader should not see, with some of the text behind it."""
    text = "".join(page.text)
    for kind in (COMMAND, LEFT_OVER):
        for found in kind.finditer(text):
            yield "shows %s" % " ".join(text[found.start() : found.start() + 60].split())


def target(name, link):
    """The file of the site that a link in a file leads to, and the anchor; None if it leads elsewhere."""
    parts = urllib.parse.urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = urllib.parse.unquote(parts.path)
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    return path, urllib.parse.unquote(parts.fragment)


def dead(site, pages, name):
    """Links of a page that lead nowhere in the site."""
    for link in pages[name].links:
        path, anchor = target(name, link) or (None, None)
        if path is None:
            continue
        if path.startswith("../"):
            yield "the link %s leads out of the site" % link
        elif not (site / path).is_file():
            yield "the link %s leads nowhere" % link
        elif anchor and path in pages and anchor not in pages[path].anchors:
            yield "the link %s names no anchor there" % link
        elif UNSTABLE.search(link) and path != name:
            yield "the address %s is a number, not stable" % link


def far(pages):
    """Pages that are too many clicks from the front page."""
    near = {"index.html"}
    for _ in range(CLICKS):
        links = {target(name, link) for name in near & set(pages) for link in pages[name].links}
        near |= {found[0] for found in links if found}
    return sorted(set(pages) - near - {"search.html"})


def unfound(index):
    """What the search's index has no page for."""
    found = json.loads(index[index.index("{") : index.rindex("}") + 1])
    words = set(found["terms"]) | set(found["titleterms"])
    for sought in SOUGHT:
        for word in set(re.split(r"\W", sought)) - UNSOUGHT:
            if not words & {word, re.sub("y$", "i", word)}:  # the index has stems
                yield "%s, of %r" % (word, sought)


def check(site, folders):
    """What is wrong, as "file: what" lines."""
    texts = {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".js", ".css", ".svg")
    }
    pages = {name: Page(text) for name, text in texts.items() if name.endswith(".html")}
    if "index.html" not in pages:
        yield "index.html: there is none"
    named = re.compile("|".join(r"(?<![\w.])%s(?![\w-])" % re.escape(str(x)) for x in folders) or "(?!)")
    for name, text in texts.items():
        found = [*raw(pages[name]), *dead(site, pages, name)] if name in pages else []
        found += ["names the folder %s" % one.group() for one in named.finditer(text)]
        for what in dict.fromkeys(found):
            yield "%s: %s" % (name, what)
    for name in far(pages):
        yield "%s: is more than %d clicks from the front page" % (name, CLICKS)
    for what in unfound(texts.get("searchindex.js", "{\"terms\": [], \"titleterms\": []}")):
        yield "searchindex.js: the search has nothing for %s" % what


if __name__ == "__main__":
    built = pathlib.Path(sys.argv[1]).resolve()
    wrong = list(check(built, sys.argv[2:]))
    print("\n".join(wrong) or "%d pages are right" % len(list(built.rglob("*.html"))))
    sys.exit(bool(wrong))
