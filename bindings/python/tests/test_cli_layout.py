"""Tables on terminals of every width: no figure is cut, columns stand below their titles."""

from __future__ import annotations

from memopt.cli import layout
from memopt.cli.layout import Cell

PHASES = ("phase", "parameters", "activations", "total")
ROWS = [["load", "4.10 GiB", "8.00 KiB", "4.10 GiB"], ["backward", "4.10 GiB", "129.51 GiB", "-1,133.61 GiB"]]


def text_of(lines):
    return ["".join(cell.text for cell in line).rstrip() for line in lines]


def table(columns, rows, room=None):
    return text_of(layout.table(columns, rows, room))


def test_a_pipe_gets_all_of_it_in_one_line():
    rows = [["a long text " * 30, "5 %", ""]]
    lines = table(("what", "share", ""), rows)
    assert len(lines) == 3 and rows[0][0].strip() in lines[2]
    assert table(PHASES, ROWS) == [
        "  phase     parameters  activations          total",
        "  --------  ----------  -----------  -------------",
        "  load        4.10 GiB     8.00 KiB       4.10 GiB",
        "  backward    4.10 GiB   129.51 GiB  -1,133.61 GiB",
    ]


def test_texts_are_wrapped_between_words_and_figures_never():
    rows = [["the weights of all of the layers", "31.00 GiB", "--offload all"]]
    assert table(("what", "saves", "option"), rows, 44) == [
        "  what                  saves  option",
        "  ----------------  ---------  -------------",
        "  the weights of    31.00 GiB  --offload all",
        "  all of the",
        "  layers",
    ]
    assert len(table(("what", "saves", "option"), rows, 60)) == 3


def test_columns_in_which_nothing_stands_go_first():
    columns = ("device", "name", "allocated", "cached", "used")
    rows = [["cuda:0", "python", "-", "", "64.00 MiB"], ["cuda:1", "python", "-", "", "1.00 GiB"]]
    assert "allocated" in table(columns, rows, 60)[0]
    narrow = table(columns, rows, 40)
    assert narrow[0].split() == ["device", "name", "used"] and len(narrow) == 4


def test_rows_and_columns_change_places():
    lines = table(PHASES, ROWS, 44)
    assert lines == [
        "  phase            load       backward",
        "  -----------  --------  -------------",
        "  parameters   4.10 GiB       4.10 GiB",
        "  activations  8.00 KiB     129.51 GiB",
        "  total        4.10 GiB  -1,133.61 GiB",
    ]
    many = [["row %d" % number, *ROWS[0][1:]] for number in range(9)]
    assert "  phase        row 0" in table(PHASES, many, 41)  # too many to become columns
    titles = ["name"] + ["a_long_title_%d" % number for number in range(5)]
    short = [["r%d" % number] + ["7"] * 5 for number in range(9)]
    assert table(titles, short[:8], 70)[0].split() == ["name"] + ["r%d" % n for n in range(8)]
    assert table(titles, short, 70)[:2] == ["  name            r0", "  a_long_title_0  7"]


def test_what_has_no_title_is_an_ornament():
    rows = [["weights %d" % i, "2.05 GiB", "4.6 %", "█" * 13] for i in range(9)]
    lines = table(("what", "bytes", "share", ""), rows, 40)
    assert lines[2] == "  weights 0  2.05 GiB  4.6 %" and "█" not in "".join(lines)


def test_a_row_becomes_a_block():
    rows = [
        ["→", "micro-batch 8 → 2", "26.08 GiB", "--batch 2 --accumulation 4", "first"],
        ["", "a fused loss: logits never exist as a whole", "5.57 GiB", "--loss fused", ""],
    ]
    assert table(("", "change", "saves", "option", ""), rows, 30) == [
        "  change  → micro-batch 8 → 2",
        "  saves   26.08 GiB",
        "  option  --batch 2",
        "          --accumulation 4,",
        "          first",
        "",
        "  change  a fused loss: logits",
        "          never exist as a",
        "          whole",
        "  saves   5.57 GiB",
        "  option  --loss fused",
    ]


def test_every_width():
    """Whatever the width, every figure is there in one piece, and every word."""
    columns = ("device", "name of it", "", "used", "%", "changes")
    for count in (1, 3, 12):
        rows = [
            ["cuda:%d" % i, "A card of some length", "fits", "%d.%02d GiB" % (i, i), "%d %%" % i,
             "" if i % 2 else "checkpointing none → full; states to the host"]
            for i in range(count)
        ]  # fmt: skip
        for width in range(30, 140):
            lines = table(columns, rows, width)
            text = " ".join(" ".join(lines).split())
            for row in rows:
                assert row[0] in text and row[3] in text and row[4] in text, (width, lines)
            assert max(map(len, lines)) <= width, (width, lines)


def test_wide_characters():
    assert [layout.width(text) for text in ("abc", "日本", "e\u0301", "→")] == [3, 4, 1, 1]
    lines = table(("name", "used"), [["日本", "1 B"], ["abcd", "2 B"]])
    assert lines[2:] == ["  日本   1 B", "  abcd   2 B"]


def test_columns_of_numbers():
    for cells in (["1.00 ×"], ["-36.31 GiB", "0 B"], ["+0.31 %", "-"], ["1,024", ""], ["54 °C"]):
        assert layout.numeric(cells), cells
    for cells in ([""], [], ["1 of 2"], ["fits", "1"], ["3 x"]):
        assert not layout.numeric(cells), cells


def test_meanings_stay_with_their_cells():
    lines = layout.table(("a", "b"), [["x", Cell("5 %", "bad")]], None)
    assert [(cell.text, cell.meaning) for cell in lines[2]] == [
        ("  ", ""), ("x", ""), ("  ", ""), ("5 %", "bad"),
    ]  # fmt: skip
    assert {cell.meaning for cell in lines[0] if cell.text.strip()} == {"head"}
    assert {cell.meaning for cell in lines[1] if cell.text.strip()} == {"dim"}
