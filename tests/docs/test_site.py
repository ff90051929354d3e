"""That site_check.py and browser.py find each kind of mistake, nothing in a site that is right, and what
pages.py makes of a page for Doxygen."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "docs"), str(ROOT / "docs")]
import pages
import site_check as site

GOOD = """<html><head><title>a</title><link href="a.css"/></head><body>
<h1><a class="anchor" id="index__a"></a>A title</h1><div id="main-nav"><li>menu</li></div>
<p>mail@section.org, 10% of a | b, <code>@section `x`</code><br>
<a href="b.html#there">b</a> <a href="#index__a">here</a> <a href="https://example.org/x">far</a></p>
<table class="markdownTable"><tr><td>1</td></tr></table>
<table class="markdownTable"><tr><td>2</td></tr></table>
<pre>| a | @ref b |</pre><div class="fragment"><div class="line">@param[in] x `</div></div></body></html>
"""
BAD = {
    "@section autotoc_md9 Which": "shows @section",
    '@ref /some/where.md "x"': "shows @ref",
    "\\ref x": "shows \\ref",
    "&lt;table class=\"markdownTable\"&gt;": "shows <table",
    "<br>\n| a | b |\n": "shows | a | b |",
    "`memopt plan`": "shows `memopt",
    "[a](b.html)": "shows ](",
    "an option –apply": "shows –apply",
    '<a href="page.md#x">x</a>': "page.md#x leads nowhere",
    '<a href="b.html#gone">x</a>': "b.html#gone names no anchor",
    '<a href="#gone">x</a>': "#gone names no anchor",
    '<a href="../x.html">x</a>': "leads out of the site",
    '<img src="x.png"/>': "x.png leads nowhere",
    '<object data="x.svg"></object>': "x.svg leads nowhere",
    '<a id="md__home_me_a"></a>': "not stable",
    '<a id="autotoc_md7"></a>': "not stable",
    "in /home/me/memopt/docs": "names the folder /home/me/memopt",
}


def built(folder, text, script=""):
    """A small site."""
    for name, content in {
        "index.html": text, "b.html": '<p id="there">b</p>', "a.css": "", "menu.js": script,
    }.items():  # fmt: skip
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def found(text, script=""):
    """What site_check.py says of a front page and of addresses in a script."""
    with tempfile.TemporaryDirectory() as folder:
        return list(site.check(built(pathlib.Path(folder).resolve(), text, script), ["/home/me/memopt"]))


def browsed(text):
    """The status and the words of browser.py."""
    with tempfile.TemporaryDirectory() as folder:
        site_folder = str(built(pathlib.Path(folder), text))
        command = [sys.executable, str(ROOT / "tests" / "docs" / "browser.py"), site_folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout


def filtered(text):
    """What Doxygen reads of a page of the guide."""
    page = pages.Page(pages.pages_of(["docs/guide"]), ROOT / "docs" / "guide" / "cast.md")
    return page.text_of(text)


assert found(GOOD) == [], found(GOOD)
for more, said in BAD.items():
    wrong = found(GOOD.replace("</body>", more + "</body>"))
    assert any(said in what for what in wrong), (more, wrong)
wrong = found(GOOD, "url:'gone.html' ['x',['../b.html']]")
assert len(wrong) == 2, wrong

status, said = browsed(GOOD)
if status != 77:
    assert status == 0, said
    for more, what in {
        "<script>console.error('oops')</script>": "console: oops",
        "<script>nothing()</script>": "nothing is not defined",
        '<img src="gone.png">': "gone.png does not load",
        '<img src="a.css">': "a.css is not shown",
    }.items():
        status, said = browsed(GOOD.replace("</body>", more + "</body>"))
        assert status == 1 and what in said, (more, said)

for text, expected in {
    "# Casts\n": "# Casts {#guide_cast}\n",
    "# A\n\n## B `c`, d\n## B c d\n": "# A {#guide_cast}\n\n"
    "## B `c`, d {#guide_cast__b-c-d}\n## B c d {#guide_cast__b-c-d-1}\n",
    "a [b\n  c](device.md#x-y)\nd\n\ne\n": "a [b c](guide_device.html#guide_device__x-y)\nd\n\n\ne\n",
    "[a](#b), [b](../abi.md)": "[a](guide_cast.html#guide_cast__b), b",
    "[c](index.md), [d](https://d)": "[c](index.html), [d](https://d)",
    "![a picture](../images/plan.svg)": "![a picture](plan.svg)",
    "`[a](plan.md)` and `it's`, `a\nb`\n\n": "`[a](plan.md)` and ``it's``, `a b`\n\n\n",
    "--apply, `--apply`, a--b": "\\--apply, `--apply`, a--b",
    "```\n[a](plan.md)\n```\n\n    [a](plan.md)\n": "```\n[a](plan.md)\n```\n\n    [a](plan.md)\n",
}.items():
    assert filtered(text) == expected, (text, filtered(text))
print("every kind of mistake is found")
