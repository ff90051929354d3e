"""./setup asks apt for a clang that it has, and goes on without where it has none.

Runs a copy of the script with an apt and a dpkg of its own: nothing is installed.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
APT_CACHE = """#!/bin/sh
case " $OFFERED " in *" $2 "*) echo "$2 | 1 | somewhere" ;; esac
"""
DPKG_QUERY = """#!/bin/sh
for package; do :; done
case " $INSTALLED " in *" $package "*) printf 'ii ' ;; *) exit 1 ;; esac
"""
APT_GET = """#!/bin/sh
echo "apt-get $*" >>"$LOG"
"""


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        shutil.copy(ROOT / "setup", self.folder)
        shutil.copytree(ROOT / "tools", self.folder / "tools")
        self.program("apt-cache", APT_CACHE)
        self.program("dpkg-query", DPKG_QUERY)
        self.program("apt-get", APT_GET)
        self.program("id", "#!/bin/sh\necho 0\n")
        self.program("env", '#!/bin/sh\nshift\nexec "$@"\n')
        self.cmake("3.25.1")
        python = self.folder / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\necho "python $*" >>"$LOG"\n')
        python.chmod(0o755)

    def program(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def cmake(self, version):
        self.program("cmake", f"#!/bin/sh\necho cmake version {version}\n")

    def run_setup(self, offered=(), installed=(), arguments=()):
        """(packages asked of apt-get install, the script's words, what pip was asked)"""
        log = self.folder / "log"
        environment = dict(os.environ, PATH=f"{self.bin}:{os.environ['PATH']}", LOG=str(log),
                           OFFERED=" ".join(offered), INSTALLED=" ".join(installed))
        done = subprocess.run(["bash", str(self.folder / "setup"), *arguments], env=environment, text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = log.read_text().splitlines() if log.exists() else []
        installs = [line for line in lines if line.startswith("apt-get install")]
        packages = installs[0].split()[4:] if installs else []
        return packages, done.stdout + done.stderr, [line for line in lines if "pip" in line]

    def test_clang(self):
        offers = {
            "gcc clang-18 lld-18 clang-19 lld-19 clang-22 lld-22": ["gcc", "clang-19", "lld-19"],
            "clang-17 lld-17 clang-18 lld-18": ["clang-18", "lld-18"],  # Ubuntu 24.04
            "clang-21 lld-21 clang-22": ["clang-21", "lld-21"],
            "clang-15 lld-15 gcc": ["gcc"],  # Ubuntu 22.04
        }
        for offered, asked in offers.items():
            with self.subTest(offered):
                (self.folder / "log").unlink(missing_ok=True)
                packages, words, _ = self.run_setup(offered.split())
                self.assertEqual(packages, asked)
                for told in ("no clang from 17 on", "compiled when they are first used"):
                    self.assertEqual(told in words, asked == ["gcc"])

    def test_installed_clang_stays(self):
        packages, words, _ = self.run_setup(["clang-19", "lld-19"], ["clang-18", "lld-18"])
        self.assertEqual(packages, [])
        self.assertNotIn("no clang from", words)

    def test_missing_package(self):
        packages, words, _ = self.run_setup(["gcc"])
        self.assertEqual(packages, ["gcc"])
        self.assertIn("apt offers no libpthreadpool-dev here", words)

    def test_the_demo_needs_little(self):
        everything = ["gcc", "cmake", "libopenblas-dev", "g++", "doxygen", "clang-19", "lld-19", "zsh"]
        packages, _, pip = self.run_setup(everything, arguments=["--demo"])
        self.assertEqual(packages, ["gcc", "cmake", "libopenblas-dev"])
        self.assertEqual(pip, [])

    def test_old_cmake(self):
        _, words, _ = self.run_setup()
        self.assertNotIn("older than 3.25", words)
        self.cmake("3.22.1")
        _, words, pip = self.run_setup()
        self.assertIn("older than 3.25", words)
        self.assertIn("cmake>=3.25", pip[-1])


if __name__ == "__main__":
    unittest.main(argv=["test_setup"], verbosity=2)
