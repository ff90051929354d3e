#!/usr/bin/env python3
"""run.py can fail, and each mutant of the list still has its place. Nothing is built: the step's
commands are stand-ins."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import run
from mutants import MUTANTS

SOURCE = "limit = 8;\nspare = 2;\n"
# Each test sees one thing; `slow` is found by the whole step only, `always` fails without a mutant.
TESTS = """
test() { [ "$2" = 0 ] || { printf '\\t  1 - %s (Failed)\\n' "$1"; exit 8; }; }
chosen=${2:-.}
look() { ! echo "$1" | grep -q "$chosen" || test "$1" "$(grep -c "$2" source)"; }
look limit 'limit = 9'
look slow 'spare = 3'
look always 'limit'
"""


def mutant(old="limit = 8", new="limit = 9", by="^limit$", needs=""):
    return run.Mutant("from %s to %s" % (old, new), "source", old, new, "test", by, needs)


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        before = run.ROOT, run.WORK, run.STEPS
        self.addCleanup(lambda: self.point_to(*before))
        step = run.Step("true", "! grep broken source", "sh tests", " -R {}")
        self.point_to(self.root, self.root / "build" / "mutants", {"test": step})
        (self.root / "source").write_text(SOURCE)
        (self.root / "tests").write_text(TESTS.replace("look always 'limit'\n", ""))

    @staticmethod
    def point_to(root, work, steps):
        run.ROOT, run.WORK, run.STEPS = root, work, steps

    def judge(self, *mutants, arguments=()):
        """The status, the outcomes in the JUnit file, and what was printed."""
        junit, said = self.root / "mutants.xml", io.StringIO()
        with contextlib.redirect_stdout(said):
            status = run.main(["--junit", str(junit), *arguments], list(mutants))
        self.assertEqual((run.WORK / "tree" / "source").read_text(), SOURCE)
        cases = ElementTree.parse(junit).getroot().iter("testcase")
        texts = ["".join((x.get("message") or "") + (x.text or "") for x in case) for case in cases]
        return status, texts, said.getvalue()

    def test_killed(self):
        status, texts, said = self.judge(mutant())
        self.assertEqual((status, texts), (0, [""]))
        self.assertIn("by limit", said)
        self.assertTrue(said.endswith("1 mutants: 1 killed\n"))

    def test_killed_by_another_test_of_the_step(self):
        status, _, said = self.judge(mutant("spare = 2", "spare = 3"))
        self.assertEqual(status, 0)
        self.assertIn("by slow", said)

    def test_a_mutant_that_changes_nothing_survives(self):
        status, texts, said = self.judge(mutant(), mutant("spare = 2", "spare = 1 + 1"))
        self.assertEqual(status, 1)
        self.assertEqual(texts[0], "")
        self.assertIn("survived", texts[1])
        self.assertIn("+spare = 1 + 1;", texts[1])
        self.assertIn("2 mutants: 1 killed, 1 survived", said)

    def test_what_tells_nothing_is_an_error(self):
        for wrong, why in (
            (mutant(new="broken"), "building it fails"),
            (mutant(old="gone"), "0 times"),
            (mutant(old=" = "), "2 times"),
            (mutant(new="limit = 8"), "1 times"),
            (mutant(by="none", old="spare = 2", new="spare = 3"), ""),
        ):
            status, texts, _ = self.judge(wrong)
            self.assertEqual(status, 0 if not why else 1, wrong)
            self.assertIn(why, texts[0])

    def test_a_test_that_fails_without_a_mutant_kills_nothing(self):
        (self.root / "tests").write_text(TESTS)
        for by in ("always", "^limit$"):
            status, texts, _ = self.judge(mutant("spare = 2", "spare = 4", by))
            self.assertEqual(status, 1)
            self.assertIn("always fails without", texts[0])

    def test_what_the_processor_lacks_is_skipped(self):
        status, texts, _ = self.judge(mutant(), mutant(new="limit = 7", needs="no_such_flag"))
        self.assertEqual((status, texts[1]), (0, "no no_such_flag here"))
        self.assertEqual(self.judge(mutant(needs="no_such_flag"))[0], 1)  # nothing was shown



class ListTest(unittest.TestCase):
    def test_each_has_its_place(self):
        self.assertEqual(len({m.name for m in MUTANTS}), len(MUTANTS))
        for m in MUTANTS:
            self.assertIn(m.step, run.STEPS, m.name)
            run.mutated((run.ROOT / m.file).read_text(), m)

    def test_parts_are_all_of_it(self):
        parts = [run.chosen(MUTANTS, None, "%d/3" % k) for k in (1, 2, 3)]
        self.assertEqual(len(sum(parts, [])), len(MUTANTS))
        self.assertEqual(set(sum(parts, [])), set(MUTANTS))
        with self.assertRaises(SystemExit):
            run.chosen(MUTANTS, None, "4/3")
        with self.assertRaises(SystemExit):
            run.chosen(MUTANTS, ["nobody"], "1/1")


if __name__ == "__main__":
    unittest.main()
