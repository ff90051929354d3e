"""Draws the front page's picture: what each saver leaves of a step's memory, from README.md's copy of the demo."""
import re

KINDS = (("weights", "#4c72b0"), ("gradients", "#55a868"), ("optimizer states", "#c44e52"), ("activations", "#dd8452"))
ROW = re.compile(r"^(plain|\+ .*?|all together) {2,}([\d. ]+)$", re.M)
LEFT, WIDTH, STEP = 160, 250, 26


def text(x, y, words, anchor="start"):
    return '<text x="%.0f" y="%d" text-anchor="%s">%s</text>' % (x, y, anchor, words)


def bar(x, y, width, color):
    return '<rect x="%.1f" y="%d" width="%.1f" height="18" fill="%s"/>' % (x, y, width, color)


def draw(readme):
    """The picture as SVG."""
    table = readme[readme.index("\npeak MiB ") :]
    rows = [(name, [float(x) for x in cells.split()]) for name, cells in ROW.findall(table)]
    scale = WIDTH / max(sum(values[: len(KINDS)]) for _, values in rows)
    parts, x = [], 0
    for kind, color in KINDS:
        parts += [bar(x, 0, 12, color), text(x + 17, 14, kind)]
        x += 40 + 7 * len(kind)
    for k, (name, values) in enumerate(rows):
        x, y = LEFT, STEP * (k + 1) + 8
        parts.append(text(LEFT - 8, y + 14, name, "end"))
        for value, (_, color) in zip(values, KINDS):
            parts.append(bar(x, y, value * scale, color))
            x += value * scale
        parts.append(text(x + 6, y + 14, "%.0f MiB" % sum(values[: len(KINDS)])))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 %d %d" font-family="sans-serif" font-size="13"'
        ' fill="#222">'
        "<rect x='-8' y='-8' width='100%%' height='100%%' fill='#fff'/>%s</svg>\n"
        % (LEFT + WIDTH + 90, STEP * (len(rows) + 1) + 24, "".join(parts))
    )
