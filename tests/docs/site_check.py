"""Checks the HTML that Doxygen built: what a reader sees, and where the links lead.

    site_check.py SITE FOLDER...

In every page of SITE: no command of Doxygen and no Markdown or HTML of a source stands in the text;
every link, picture and script is a file of SITE, with the anchor that the link names (addresses in
the menu and the search, too); no name of a page, address or anchor depends on the folder in which
the site was built or on the order of the headings. The FOLDERs (sources, build) are named nowhere.
"""
import html.parser
import pathlib
import posixpath
import re
import sys
import urllib.parse

COMMAND = re.compile(r"(?<![\w@\\.])[@\\][a-z]{2,}\b")
LEFT_OVER = re.compile(
    r"`|(?<!\w)–(?=[a-z])|\]\(|\{#|\*\*\w[^*,()]*\*\*|^ *\|.*\| *$|\|-{2,}"
    r"|</?(?:table|t[hrd]|p|a|b|em|code|ul|ol|li|br|img|h\d)\b[^>]*>?",
    re.M,
)
NOT_TEXT = {"script", "style", "pre", "code", "title"}
EMPTY = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}
# Doxygen's own names: of a page whose path begins with /, of a heading without a label (a number).
UNSTABLE = re.compile(r"(?:^|[/#])(?:md__|autotoc_md)")
IN_SCRIPT = re.compile(r"url:\s*[\"']([^\"']*)[\"']|'(\.\./[^']*)'")


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
        self.links += [attrs[key] for key in ("href", "src", "data") if attrs.get(key)]
        if tag in EMPTY:
            return
        hides = tag in NOT_TEXT or "fragment" in (attrs.get("class") or "").split()
        self.open.append((tag, hides))
        self.hidden += hides

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.handle_endtag(tag)

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


def dead(site, pages, name, links):
    """Links of a file that lead nowhere in the site."""
    for link in links:
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        path, anchor = urllib.parse.unquote(parts.path), urllib.parse.unquote(parts.fragment)
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
        if target.startswith("../"):
            yield "the link %s leads out of the site" % link
        elif not (site / target).is_file():
            yield "the link %s leads nowhere" % link
        elif anchor and anchor not in pages[target].anchors:
            yield "the link %s names no anchor there" % link


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
    named = re.compile("|".join(r"(?<![\w.])%s(?![\w-])" % re.escape(str(x)) for x in folders) or "$^")
    for name, text in texts.items():
        if name in pages:
            page = pages[name]
            links, addresses = page.links, {"#" + anchor for anchor in page.anchors}
            found = list(raw(page))
        else:
            links = [a or b for a, b in IN_SCRIPT.findall(text)] if name.endswith(".js") else []
            found, addresses = [], set()
        found += dead(site, pages, name, links)
        for address in sorted({name, *links, *addresses}):
            if UNSTABLE.search(address):
                found.append("the address %s is Doxygen's own, not stable" % address)
        found += ["names the folder %s" % one.group() for one in named.finditer(text)]
        for what in dict.fromkeys(found):
            yield "%s: %s" % (name, what)


if __name__ == "__main__":
    built = pathlib.Path(sys.argv[1]).resolve()
    wrong = list(check(built, sys.argv[2:]))
    print("\n".join(wrong) or "%d pages are right" % len(list(built.glob("*.html"))))
    sys.exit(bool(wrong))
