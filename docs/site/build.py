"""Builds the site: build.py OUT DOXYGEN VERSION writes OUT/html.

OUT/pages gets a copy of what the site has of the repository, and the pages of the interfaces: those of C name
what Breathe finds in Doxygen's XML (OUT/Doxyfile), those of Python have the text of its sources. Warnings of
Doxygen and of Sphinx are errors.
"""
import pathlib
import shutil
import subprocess
import sys

import c_pages
import picture

SITE = pathlib.Path(__file__).resolve().parent
ROOT = SITE.parents[1]


def copy(pages):
    """The repository as far as it is in the site. Copies, since MyST follows links to where they lead."""
    for folder in (ROOT / "docs", *ROOT.glob("extras/*/docs")):
        shutil.copytree(folder, pages / folder.relative_to(ROOT), ignore=shutil.ignore_patterns("site", "*.py"))
    shutil.copy(SITE / "index.rst", pages)
    shutil.copy(ROOT / "README.md", pages)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (pages / "savers.svg").write_text(picture.draw(readme), encoding="utf-8")


def main(out, doxygen, version):
    try:
        import breathe, furo, myst_parser  # noqa: E401, F401
        import python_pages
        from sphinx.cmd.build import main as sphinx
    except ImportError as error:
        return "the site needs Sphinx, myst-parser, Breathe and furo (./setup installs them): %s" % error
    for name in ("pages", "xml", "doxygen", "html", "doctrees"):
        shutil.rmtree(out / name, ignore_errors=True)
    if subprocess.run([doxygen, str(out / "Doxyfile")], cwd=ROOT, check=False).returncode:
        return 1
    pages = out / "pages"
    copy(pages)
    c_pages.write(out / "xml", pages)
    python_pages.write(pages)
    settings = ["-D", "release=" + version, "-D", "breathe_projects.memopt=%s" % (out / "xml")]
    options = ["-q", "-W", "--keep-going", "-d", str(out / "doctrees")]
    return sphinx([*options, *settings, "-c", str(SITE), "-b", "html", str(pages), str(out / "html")])


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), *sys.argv[2:]))
