"""What is due: stages of ./check that take minutes and depend on few files.

A stage is due when its files are not those of the run that passed last: stamps.txt, which is committed,
has their digest. `./check --torch` (continuous integration) runs what is due, `./check --long` all.

due.py              names the stages that are due, one a line
due.py --all        names all stages
due.py --passed S JUNIT   writes the stamp of stage S, if none of its proofs was left out or skipped
"""
import hashlib
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAMPS = pathlib.Path(__file__).with_name("stamps.txt")
STAGES = {
    # The same bits as other processors.
    "machines": ("kernels", "cmake/make_tables.c", "lib/device/cpu", "tests/conformance", "tests/machines",
                 "examples/c"),
    # The kernels as the GPUs' compilers make them, executed; and those compiled at run time.
    "gpu-code": (
        "kernels",
        "cmake/MemoptGpu.cmake",  # the images' flags
        "cmake/MemoptFlatten.cmake",
        "cmake/MemoptSortPtx.cmake",
        "cmake/make_tables.c",
        "lib/device/gpu",
        "tests/conformance",
        "tests/gcn",
        "tests/ptx",
        "tests/sim",
        "tests/support/parts.py",
    ),
}
# The tests without which a stage has proved nothing: a machine may lack their tools.
PROOFS = {
    "gpu-code": {"conformance_ptx", "conformance_gcn_gfx1030", "conformance_gcn_gfx90a"},
    "machines": {"machines_aarch64", "machines_Nehalem", "machines_Haswell", "machines_EPYC-Rome"},
}


def files(stage, root):
    """The stage's files, but what git ignores; None without git."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard", "--"]
    try:
        done = subprocess.run([*command, *STAGES[stage]], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    names = sorted(set(done.stdout.decode().split("\0")) - {""})
    return [name for name in names if (root / name).is_file()]


def digest(stage, root):
    names = files(stage, root)
    if not names:
        return None
    total = hashlib.sha256()
    for name in names:
        total.update(name.encode() + b"\0" + hashlib.sha256((root / name).read_bytes()).digest())
    return total.hexdigest()


def read_stamps(path):
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except FileNotFoundError:
        return {}
    return {words[0]: words[1] for words in lines if len(words) == 2 and words[0] in STAGES}


def due(root=ROOT, stamps=STAMPS):
    """A stage whose files cannot be told is due."""
    passed = read_stamps(stamps)
    return [stage for stage in STAGES if passed.get(stage) != digest(stage, root) or stage not in passed]


def missing_proofs(stage, junit):
    ran = set()
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        if case.get("status") == "run":
            ran.add(case.get("name"))
    return sorted(PROOFS[stage] - ran)


def write_stamp(stage, root=ROOT, stamps=STAMPS):
    now = digest(stage, root)
    if now is None:
        return
    passed = {**read_stamps(stamps), stage: now}
    stamps.write_text("".join("%s %s\n" % pair for pair in sorted(passed.items())))


def main(words):
    if words == []:
        print("\n".join(due()))
    elif words == ["--all"]:
        print("\n".join(STAGES))
    elif len(words) == 3 and words[0] == "--passed" and words[1] in STAGES:
        missing = missing_proofs(words[1], words[2])
        if missing:
            print("due: %s stays due: did not run: %s" % (words[1], ", ".join(missing)))
        else:
            write_stamp(words[1])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
