"""Sphinx's configuration of the site; build.py runs it. A page is where its file is in the repository, so
that a link from page to page is the same on a forge and here."""
import pathlib
import posixpath
import re

from docutils import nodes
from sphinx import addnodes

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "libmemopt"
copyright = "the libmemopt authors"
extensions = ["myst_parser", "breathe"]
exclude_patterns = ["README.md"]
breathe_default_project = "memopt"  # build.py knows its folder
breathe_domain_by_extension = {"h": "c"}
breathe_order_parameters_first = True
breathe_show_define_initializer = True
breathe_show_enumvalue_initializer = True
smartquotes = False  # -- begins an option
nitpicky = True
nitpick_ignore_regex = [
    ("c:identifier", r"u?int\d+_t|size_t|memopt_stream_opaque"),
    ("py:class", r".*"),  # types in signatures
]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # a program's output is no language
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_domain_indices = False
html_theme = "furo"
html_title = "libmemopt"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]

#: The pages below a README.md, which lists them in its own way.
BELOW = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
NAME = re.compile(r"(memopt_\w+(?:::\w+)?|MEMOPT_[A-Z]\w+)(\(\))?")
HEADER = re.compile(r"(?:.*/)?include/memopt/(.*)\.h")


def add_contents(app, docname, source):
    if docname.endswith("/README"):
        source[0] += BELOW


def to_page(node, docname, page):
    """Makes a link one to a page."""
    found = addnodes.pending_xref(
        "", *node.children, refdomain="std", reftype="doc", reftarget="/" + page, refexplicit=True, refdoc=docname
    )
    node.replace_self(found)


def lead_links(app, tree):
    """Links to folders go to the README.md there, those to headers to their pages; links to other files of
    the repository are text. What is no file is left, and so MyST's error."""
    docname = app.env.docname
    for node in list(tree.findall(addnodes.pending_xref)):
        if node["reftype"] != "myst" or node["refdomain"]:
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(docname), node["reftarget"]))
        header = HEADER.fullmatch(path)
        if path + "/README" in app.env.found_docs:
            to_page(node, docname, path + "/README")
        elif header and "c/" + header[1] in app.env.found_docs:
            to_page(node, docname, "c/" + header[1])
        elif (ROOT / path).exists():
            node.replace_self(node.children)


def code_of_references(app, tree):
    """What Doxygen refers to becomes code that link_names() sees: Breathe's addresses have Doxygen's hashes."""
    for node in list(tree.findall(addnodes.pending_xref)):
        if node["reftype"] == "ref" and app.env.docname.startswith("c/"):
            node.replace_self(nodes.literal("", node.astext()))


def link_names(app, tree):
    """Code that is a name of the C interface, or one of its headers, becomes a link to it."""
    for node in list(tree.findall(nodes.literal)):
        found = NAME.fullmatch(node.astext())
        header = HEADER.fullmatch("include/" + node.astext())
        around = node.parent.parent if isinstance(node.parent, nodes.inline) else node.parent
        if not isinstance(around, (nodes.paragraph, nodes.entry)):
            continue
        if found:
            name = found[1].replace("::", ".")
            link = addnodes.pending_xref(
                "", refdomain="c", reftype="identifier", reftarget=name, refdoc=app.env.docname, perhaps=True
            )
            node.replace_self(link)
            link += node
        elif header and "c/" + header[1] in app.env.found_docs:
            to_page(node, app.env.docname, "c/" + header[1])


def draw_dashes(app, tree):
    """Sphinx writes -- between a parameter and its text, and counts on smartquotes."""
    for node in list(tree.findall(nodes.Text)):
        if node == " -- ":
            node.parent.replace(node, nodes.Text(" – "))


def find_page_titles(app, env):
    """The contents of pages without members: what the navigation needs."""
    env.page_titles = {}
    for name, toc in env.tocs.items():
        env.page_titles[name] = toc = toc.deepcopy()
        for entries in list(toc.findall(nodes.bullet_list)):
            if entries is not toc and not any(entries.findall(addnodes.toctree)):
                entries.parent.remove(entries)


def navigate_by_titles(app, name, template, context, doctree):
    """The navigation copies all contents for each page: with members that took half of the build."""
    env, toctree = app.env, context.get("toctree")

    def of_titles(**options):
        whole, env.tocs = env.tocs, env.page_titles
        try:
            return toctree(**options)
        finally:
            env.tocs = whole

    if toctree:
        context["toctree"] = of_titles


def missing(app, env, node, content):
    """A name that is in no page is as before."""
    return content if node.get("perhaps") else None


def setup(app):
    app.connect("source-read", add_contents)
    app.connect("doctree-read", lead_links)
    app.connect("doctree-read", code_of_references)
    app.connect("doctree-read", link_names)
    app.connect("doctree-read", draw_dashes)
    app.connect("env-check-consistency", find_page_titles)
    app.connect("html-page-context", navigate_by_titles, priority=400)  # before the theme
    app.connect("missing-reference", missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
