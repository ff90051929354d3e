"""That site_check.py and browser.py find each kind of mistake, nothing in a site that is right, and what
the writers of reference pages make of descriptions."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tests" / "docs"), str(ROOT / "docs" / "site")]
import c_pages
import picture
import python_pages
import site_check as site

GOOD = """<html><head><title>a</title><link href="a.css"/></head><body>
<h1 id="a">A title</h1><div class="sidebar-tree"><li>menu</li></div><button class="theme-toggle"></button>
<p>mail@section.org, 10% of a | b, at 3:4, <code>@section `x`</code><br>
<a href="b.html#there">b</a> <a href="#a">here</a> <a href="https://example.org/x">far</a></p>
<pre>| a | @ref b |</pre>
<script>document.querySelector("button").onclick = () => { document.body.style.background = "black" }</script>
</body></html>
"""
INDEX = '{"terms": {"bit": 1, "memori": 1}, "titleterms": {"rocm": [1, 2]}}'
SEARCH = '<div class="sidebar-tree"><li></li></div><ul id="search-results"><li>found</li></ul>'
BAD = {
    "@section Which": "shows @section",
    "\\ref x": "shows \\ref",
    "&lt;table class=\"x\"&gt;": "shows <table",
    "<br>\n| a | b |\n": "shows | a | b |",
    "`memopt plan`": "shows `memopt",
    "<p>see :doc:`x`</p>": "shows :doc:",
    "<p>:param x: y</p>": "shows :param x",
    "<p>\n.. note:: x</p>": "shows .. note",
    "[a](b.html)": "shows ](",
    '<a href="page.md#x">x</a>': "page.md#x leads nowhere",
    '<a href="b.html#gone">x</a>': "b.html#gone names no anchor",
    '<a href="#gone">x</a>': "#gone names no anchor",
    '<a href="../x.html">x</a>': "leads out of the site",
    '<img src="x.png"/>': "x.png leads nowhere",
    '<a href="b.html#id7">x</a>': "b.html#id7 is a number",
    "in /home/me/memopt/docs": "names the folder /home/me/memopt",
}


def built(folder, text, more):
    """A small site."""
    for name, content in {
        "index.html": text, "b.html": '<p id="there">b</p><p id="id7"></p>', "a.css": "", "search.html": SEARCH,
        "searchindex.js": "Search.setIndex(%s)" % INDEX, **more,
    }.items():  # fmt: skip
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def found(text, **more):
    """What site_check.py says of a front page and of other files."""
    with tempfile.TemporaryDirectory() as folder:
        return list(site.check(built(pathlib.Path(folder).resolve(), text, more), ["/home/me/memopt"]))


def browsed(text, **more):
    """The status and the words of browser.py."""
    with tempfile.TemporaryDirectory() as folder:
        site_folder = str(built(pathlib.Path(folder), text, more))
        command = [sys.executable, "-B", str(ROOT / "tests" / "docs" / "browser.py"), site_folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout


def page_of(xml):
    """The page of a header that Doxygen describes so, and what is left for Breathe."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "a_8h.xml").write_text(xml, encoding="utf-8")
        c_pages.write(folder, folder)
        return (folder / "c" / "a.rst").read_text(encoding="utf-8"), (folder / "a_8h.xml").read_text(encoding="utf-8")


assert found(GOOD) == [], found(GOOD)
for more, said in BAD.items():
    wrong = found(GOOD.replace("</body>", more + "</body>"))
    assert any(said in what for what in wrong), (more, wrong)
chain = {"%s.html" % name: '<a href="%s.html">' % then for name, then in zip("cd", "de")}
wrong = found(GOOD.replace("</body>", '<a href="c.html">x</a></body>'), **chain, **{"e.html": ""})
assert wrong == ["e.html: is more than 2 clicks from the front page"], wrong
wrong = found(GOOD, **{"searchindex.js": INDEX.replace("memori", "x").replace("rocm", "rock")})
assert [x.split(" for ")[1] for x in wrong] == ["memory, of 'out of memory'", "rocm, of 'rocm'"], wrong

status, said = browsed(GOOD)
if status != 77:
    assert status == 0, said
    mistakes = {
        "<script>console.error('oops')</script>": "console: oops",
        "<script>nothing()</script>": "nothing is not defined",
        '<script src="gone.js"></script>': "gone.js does not load",
        '<img src="a.css">': "a.css is not shown",
        '<div style="width: 500px">x</div>': "pixels wide in a window of 400",
    }
    page = GOOD.replace("black", "").replace("sidebar-tree", "").replace("</body>", "".join(mistakes))
    status, said = browsed(page, **{"search.html": SEARCH.replace("<li>found", "")})
    for what in (*mistakes.values(), "menu is empty", "does not make it dark", "finds nothing for rocm"):
        assert status == 1 and what in said, (what, said)

lists = "<parameterlist>b</parameterlist>\n<simplesect>c</simplesect>"
page, xml = page_of(
    """<doxygen><compounddef kind="file"><compoundname>a.h</compoundname><innerclass>memopt_s</innerclass>
<memberdef kind="enum"><name>@7</name><enumvalue><name>MEMOPT_A</name></enumvalue><briefdescription>
<para>Of <ref>memopt_s::k</ref>. </para></briefdescription><location line="9"/></memberdef>
<memberdef kind="typedef"><name>memopt_t</name><location line="8"/></memberdef>
<para>a\n1 %s\nd\n</para><verbatim>x\ny</verbatim><location file="memopt/a.h"/></compounddef></doxygen>"""
    % lists
)
assert "<para>a 1 %s</para><para>d\n</para><verbatim>x\ny</verbatim>" % lists in xml, xml
named = [line for line in page.split("\n") if line.startswith((".. doxy", "Of"))][1:]
of_enum = ["Of ``memopt_s::k``.", ".. doxygenenumvalue:: MEMOPT_A"]
assert named == [".. doxygenstruct:: memopt_s", ".. doxygentypedef:: memopt_t", *of_enum], page

pages = python_pages.Pages()
for text, expected in {
    "Takes `x` and\na_b.\n\n    a = 1\n\n    b = 2\n": [
        "Takes ~``x``~ and", "a\\_b.", "", ".. code-block:: python", "", "   a = 1", "", "   b = 2"],
    "Lists\n- a\n- b\n\nArgs:\n    x: c\n": ["Lists", "", "- a", "", "- b", "", ":param x: c"],
    ":class:`Region`, `nothing`": ["~:py:obj:`Region <memopt.Region>`~, ~``nothing``~"],
}.items():  # fmt: skip
    lines = "\n".join(pages.prose(text, "memopt")).replace(python_pages.rst.JOIN, "~").strip().split("\n")
    assert lines == expected, (text, lines)
with tempfile.TemporaryDirectory() as folder:
    python_pages.rst.write(pathlib.Path(folder) / "a", [pages.inline("`a`\nb `c`d", "memopt")])
    assert (pathlib.Path(folder) / "a").read_text(encoding="utf-8") == "\\ ``a``\nb \\ ``c``\\ d\n"
text = "\n".join(pages.page("memopt.torch.optim"))
assert "AdamW8bit(params, lr=0.001" in text and ":param paged: " in text

assert picture.draw("\npeak MiB  a\nplain   1.0 2.0 3.0 4.0 5.0\n").count("<rect") == 1 + 4 + 4
print("every kind of mistake is found")
