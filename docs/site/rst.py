"""What both writers of reference pages have in common: reStructuredText."""
import re

JOIN = "\ue000"  # between markup and what stands beside it; "\\ " in a file
MARKUP = re.compile(r"([\\*`|_<>])")


def plain(text):
    """Text without a meaning as markup."""
    return MARKUP.sub(r"\\\1", text)


def code(text):
    text = " ".join(text.split())
    return "%s``%s``%s" % (JOIN, text, JOIN) if text else ""


def role(name, shown, target):
    return "%s:%s:`%s <%s>`%s" % (JOIN, name, plain(shown), target, JOIN)


def indented(lines, by="   "):
    return [by + line if line else "" for line in lines]


def directive(name, argument, lines=(), **options):
    rows = ["   :%s: %s" % option for option in options.items()]
    return [".. %s:: %s" % (name, argument), *rows, "", *indented(lines), ""]


def title(text, line="="):
    return [plain(text), line * len(plain(text)), ""]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    # At the end of a line it would be an escaped end.
    text = re.sub(JOIN + r"(?=\s)", "", "\n".join(lines)).replace(JOIN, "\\ ")
    path.write_text(text.rstrip() + "\n", encoding="utf-8")
