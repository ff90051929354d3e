"""tests/due: a stage is due until it passed with the files as they are."""
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "due"))
import due


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for name in ("kernels/optim/a.cu", "lib/device/cpu/isa.c", "lib/base/status.c"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("one\n")
    (root / ".gitignore").write_text("*.o\n")
    subprocess.run(["git", "-C", str(root), "init", "-q"], check=True)
    return root, tmp_path / "stamps.txt"


def test_a_change_of_its_files_makes_a_stage_due(tree):
    root, stamps = tree
    assert due.due(root, stamps) == list(due.STAGES)
    for stage in due.STAGES:
        due.write_stamp(stage, root, stamps)
    assert due.due(root, stamps) == []
    (root / "lib/base/status.c").write_text("two\n")
    (root / "kernels/optim/a.o").write_text("built\n")
    assert due.due(root, stamps) == []
    (root / "lib/device/cpu/isa.c").write_text("two\n")
    assert due.due(root, stamps) == ["machines"]
    (root / "kernels/optim/a.cu").rename(root / "kernels/optim/b.cu")
    assert due.due(root, stamps) == list(due.STAGES)
    due.write_stamp("machines", root, stamps)
    assert due.due(root, stamps) == ["gpu-code"]


def test_without_git_everything_is_due(tree, tmp_path):
    root, stamps = tree
    for stage in due.STAGES:
        due.write_stamp(stage, root, stamps)
    (root / ".git").rename(tmp_path / "git")
    assert due.due(root, stamps) == list(due.STAGES)


def test_what_was_skipped_is_no_proof(tmp_path):
    junit = tmp_path / "gpu-code.xml"
    case = '<testcase name="%s" status="%s"/>'
    names = sorted(due.PROOFS["gpu-code"])
    junit.write_text("<t>%s</t>" % "".join(case % (name, "run") for name in names))
    assert due.missing_proofs("gpu-code", junit) == []
    cases = case % (names[0], "notrun") + "".join(case % (name, "run") for name in names[2:])
    junit.write_text("<t>%s</t>" % cases)
    assert due.missing_proofs("gpu-code", junit) == names[:2]


def test_each_file_that_a_stage_names_is_there():
    root = pathlib.Path(due.__file__).resolve().parents[2]
    missing = [name for names in due.STAGES.values() for name in names if not (root / name).exists()]
    assert missing == []
