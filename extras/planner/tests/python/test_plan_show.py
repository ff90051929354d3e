"""The words and colours of `memopt plan`, of answers that are made up here."""

from __future__ import annotations

from types import SimpleNamespace

from memopt.cli.output import Cell
from memopt.cli.plan import answer as answer_module
from memopt.cli.plan import show
from memopt.cli.plan.answer import CATEGORIES
from memopt.cli.plan.cards import Card
from memopt.cli.plan.describe import Description
from memopt.cli.plan.reserved import Held, Reserved
from memopt.plan import Card as Settings
from memopt.plan import Model, Run

GIB = 1 << 30


class Told:
    """An output that keeps what it is told."""

    def __init__(self):
        self.tables, self.found = {}, {}

    def table(self, title, columns, rows):
        self.tables[title] = rows

    def pairs(self, title, pairs, meaning=""):
        self.found[title] = (dict(pairs), meaning)


def peak(**sizes):
    bytes_ = {**dict.fromkeys(CATEGORIES, 0), **sizes}
    return SimpleNamespace(**bytes_, total=sum(bytes_.values()))


def plan(**more):
    values = dict(
        peak=peak(parameters=6 * GIB, activations=2 * GIB),
        peak_phase="backward",
        peak_reason="of a layer",
        overhead_reason="",
        host_bytes=0,
        disk_bytes=0,
        time_factor=1.0,
        time_assumption="compute is the limit",
        card=SimpleNamespace(capacity=10 * GIB),
    )
    return SimpleNamespace(**{**values, **more})


def breakdown(**more):
    told = Told()
    show._breakdown(plan(**more), told)
    rows = {row[0]: row[1:] for row in told.tables["At the peak"]}
    return rows, told.found["Why"][0]


def test_what_is_free_of_a_card():
    rows, _ = breakdown()
    assert rows["free"][0] == Cell("2.00 GiB", "good") and rows["card"][1] == "80.0 %"
    assert rows["weights"][:2] == ["6.00 GiB", "75.0 %"] and rows["weights"][2] == "█" * 15
    rows, _ = breakdown(card=SimpleNamespace(capacity=7 * GIB))
    assert rows["free"][0] == Cell("-1.00 GiB", "bad")
    rows, _ = breakdown(card=SimpleNamespace(capacity=8 * GIB))
    assert rows["free"][0] == Cell("0 B", "good")
    rows, _ = breakdown(card=SimpleNamespace(capacity=0))
    assert "free" not in rows and "card" not in rows


def test_why():
    """What plays no part is not spoken of."""
    _, why = breakdown()
    assert why == {"peak": "of a layer", "overhead": "", "host": "", "time": ""}
    _, why = breakdown(
        host_bytes=3 * GIB,
        disk_bytes=2 * GIB,
        time_factor=1.25,
        peak=peak(parameters=GIB, overhead=1),
        overhead_reason="the driver's",
    )
    assert why["overhead"] == "the driver's"
    assert why["host"] == "3.00 GiB on the host (3.00 GiB page-locked), 2.00 GiB on disk"
    assert why["time"].startswith("1.25 × a step") and "compute is the limit" in why["time"]


def test_what_the_times_of_changes_assume():
    def change(kind, factor):
        return SimpleNamespace(kind=kind, time_factor=factor)

    def assumed(*changes):
        return show._assumed(plan(), SimpleNamespace(changes=changes))

    assert assumed(change("optimizer", 1.02)) == "8-bit states are taken to cost 2 %"
    assert assumed(change("sharding", 1.1)) == "gathering weights is taken to cost 10 %"
    assert assumed(change("offload", 1.3), change("optimizer", 1.0)) == "compute is the limit"
    assert assumed(change("checkpointing", 1.0)) == ""


def test_how_many():
    shown = [show.count(n) for n in (999, 1000, 999_990, 999_999, 10**6, 1_234_000_000)]
    assert shown == ["999", "1.00 k", "999.99 k", "1.00 M", "1.00 M", "1.23 B"]


def answered(monkeypatch, fits):
    """What is answered where replays of plans that `fits` refuses take a tenth more than the card."""

    def reserved(plan):
        taken = Held(int(1.1 * plan.card.capacity), False)
        held = Held(plan.peak.total, True)
        return Reserved(taken, held if fits(plan) else taken)

    monkeypatch.setattr(answer_module, "reserved", reserved)
    source = answer_module.Played(Model(family="gpt2", hidden=768, layers=12, heads=12))
    card = Card("a card", Settings(capacity=16 * GIB))
    return answer_module.answer(source, Run(sequence=512), card, Settings(), None)


def test_what_replays_say_does_not_fit_is_planned_smaller(monkeypatch):
    estimated = answered(monkeypatch, lambda plan: True).run.batch
    smaller = answered(monkeypatch, lambda plan: plan.run.batch < estimated - 2)
    assert smaller.solution.fits_after and 0 < smaller.run.batch < estimated - 2
    assert not answered(monkeypatch, lambda plan: False).solution.fits_after


def test_what_fits_with_expandable_segments_alone(monkeypatch):
    told = Told()
    show.brief(answered(monkeypatch, lambda plan: True), Description(None, Run(), "a model", []), [], told)
    assert "It fits with expandable segments" in told.found
