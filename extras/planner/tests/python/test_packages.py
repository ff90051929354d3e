"""Each package loads its own library."""

import pkgutil
import subprocess
import sys

import memopt.plan
import memopt.tools
from cli_support import environment


def test_each_package_loads_its_own_library():
    code = """
import re
def loaded():
    return set(re.findall("libmemopt-[a-z]+", open("/proc/self/maps").read()))
import memopt
assert loaded() == set(), loaded()
import memopt.tools
assert loaded() == {"libmemopt-tools"}, loaded()
import memopt.plan
assert loaded() == {"libmemopt-tools", "libmemopt-plan"}, loaded()
"""
    result = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_no_public_name_hides_a_module():
    for package in (memopt.tools, memopt.plan):
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(package.__all__)
