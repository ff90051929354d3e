"""debian/: what it says twice agrees with the project, and what it makes of the Python packages runs."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYMBOLS = sorted((ROOT / "debian").glob("*.symbols"))


@pytest.mark.parametrize("symbols", SYMBOLS, ids=[path.stem for path in SYMBOLS])
def test_symbols_have_every_version_of_the_map(symbols):
    text = symbols.read_text()
    library = re.match(r"lib([\w-]+)\.so", text)[1]
    maps = [path for path in ROOT.glob("*/**/%s.map" % library) if path.parent.name == "lib"]
    (names,) = [path for path in maps if path.relative_to(ROOT).parts[0] != "build"]  # where tests copy the sources
    versions = re.findall(r"^(MEMOPT_\w+(?:\.\d+)?) \{", names.read_text(), re.M)
    assert versions and re.findall(r"\(symver\)(\S+)", text) == versions


def test_the_package_is_of_the_project_s_version():
    version = re.search(r"project\(memopt VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert re.match(r"libmemopt \(([\d.]+)", (ROOT / "debian/changelog").read_text())[1] == version


@pytest.mark.skipif(sys.version_info < (3, 11), reason="debian/python-files reads TOML by Python 3.11")
def test_the_command_runs_from_the_files(tmp_path):
    joined, prefix = tmp_path / "packages", tmp_path / "usr"
    subprocess.run([ROOT / "tools/join_packages", joined, ROOT / "bindings/python"], check=True)
    subprocess.run([ROOT / "debian/python-files", joined, prefix], check=True, cwd=ROOT)
    packages = prefix / "lib/python3/dist-packages"
    ran = subprocess.run([sys.executable, prefix / "bin/memopt", "info", "--json"], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(packages)})
    assert ran.returncode == 0 and str(packages) in ran.stdout, ran.stderr
    named = subprocess.run([sys.executable, "-c", "from importlib.metadata import distribution as d; "
                            "print([p.name for p in d('memopt').entry_points])"], capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(packages)}, check=True)
    assert "'memopt'" in named.stdout and "'memopt_race'" in named.stdout
