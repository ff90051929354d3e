#!/usr/bin/env python3
"""The recipes of packaging/: each is read by its tool, or skipped (77) where that is missing.

    recipes.py ROOT all|conan|conan_create|conda|nix|spack|vcpkg

"all" needs no tool: it compares the recipes with the build, whose settings and version they name.
"""
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

ROOT = pathlib.Path(sys.argv[1]).resolve()
PACKAGING = ROOT / "packaging"
OFF = {"MEMOPT_BUILD_TESTS": "OFF", "MEMOPT_BUILD_EXAMPLES": "OFF", "MEMOPT_THREADS": "OWN", "MEMOPT_GPU_IMAGES": "NONE"}


def skip(reason):
    print(reason)
    sys.exit(77)


def tool(name):
    """Its path; ./setup puts programs into .venv."""
    found = shutil.which(name, path=os.pathsep.join((str(ROOT / ".venv" / "bin"), os.environ.get("PATH", ""))))
    return found or skip("%s is not installed" % name)


def output(*command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, **environment))
    if done.returncode != 0:
        sys.exit("%s: %s%s" % (" ".join(map(str, command)), done.stdout, done.stderr))
    return done.stdout


def version():
    return re.search(r"project\(memopt VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def same(what, found, wanted):
    if found != wanted:
        sys.exit("%s: %s, not %s" % (what, found, wanted))


def defines(words):
    """A dictionary of -DNAME=VALUE and -DNAME:TYPE=VALUE."""
    return dict(re.fullmatch(r"-D(\w+)(?::\w+)?=(.*)", word).groups() for word in words)


def check_all():
    build = [ROOT / "CMakeLists.txt", *sorted((ROOT / "cmake").glob("*.cmake"))]
    settings = set(re.findall(r"(?:option\(|\bset\()(MEMOPT_\w+) [^)]*", "\n".join(path.read_text() for path in build)))
    recipes = [path for path in sorted(PACKAGING.rglob("*")) if path.is_file()]
    named = 0
    for path in recipes:
        names = set(re.findall(r"MEMOPT_\w+", path.read_text()))
        named += bool(names)
        same("%s names settings that the build lacks" % path, names - settings, set())
    same("recipes that say how to build", named, 5)


def check_conan():
    conan = tool("conan")
    with tempfile.TemporaryDirectory() as home:
        found = json.loads(output(conan, "inspect", PACKAGING / "conan", "--format=json", CONAN_HOME=home))
        same("conan", (found["name"], found["version"], found["license"]), ("libmemopt", version(), "MIT"))
        output(conan, "inspect", PACKAGING / "conan" / "test_package", CONAN_HOME=home)


def check_conan_create():
    """The package is built, and a program finds and uses it."""
    conan = tool("conan")
    with tempfile.TemporaryDirectory() as home:
        output(conan, "profile", "detect", CONAN_HOME=home)
        folder = "tools.cmake.cmake_layout:test_folder=" + os.path.join(home, "program")
        ninja = "tools.cmake.cmaketoolchain:generator=Ninja"  # ./setup installs no make
        output(conan, "create", PACKAGING / "conan", "-c", folder, "-c", ninja, CONAN_HOME=home)


def check_conda():
    try:
        from rattler_build import Stage0Recipe, VariantConfig
    except ImportError:
        skip("py-rattler-build is not installed")
    recipe = Stage0Recipe.from_file(PACKAGING / "conda" / "recipe.yaml")
    rendered = recipe.render(VariantConfig({"c_stdlib": ["sysroot"]}))
    same("conda, packages", [(r.recipe.package.name, r.recipe.package.version) for r in rendered], [("libmemopt", version())])
    words = re.findall(r"-DMEMOPT\S+", (PACKAGING / "conda" / "recipe.yaml").read_text())
    same("conda", defines(words), OFF)


def check_nix():
    nix = tool("nix-instantiate")
    packages = '{ stdenv.mkDerivation = made: made; cmake = "cmake"; ninja = "ninja"; lib = { licenses.mit = "MIT"; platforms.linux = [ ]; }; }'
    text = "builtins.toJSON { inherit (import %s { pkgs = %s; }) pname version cmakeFlags; }" % (PACKAGING / "nix", packages)
    with tempfile.TemporaryDirectory() as state:
        places = {"NIX_" + name: os.path.join(state, name) for name in ("STORE_DIR", "STATE_DIR", "LOG_DIR")}
        found = json.loads(json.loads(output(nix, "--eval", "--expr", text, **places)))
    same("nix", (found["pname"], found["version"], defines(found["cmakeFlags"])), ("libmemopt", version(), OFF))


def check_spack():
    """Spack is neither on PyPI nor in Debian: the recipe runs with names that stand for its interface."""
    spack = mock.MagicMock(__all__=["license", "version", "variant", "depends_on", "conflicts"])
    cmake = mock.MagicMock(CMakePackage=type("CMakePackage", (), {"define": lambda self, *words: words}))
    modules = {"spack": spack, "spack.package": spack, "spack_repo.builtin.build_systems.cmake": cmake}
    with mock.patch.dict(sys.modules, modules):
        package = runpy.run_path(str(PACKAGING / "spack" / "packages" / "libmemopt" / "package.py"))["Libmemopt"]()
    same("spack, source", package.git, ROOT.as_uri())
    package.spec = mock.MagicMock()
    package.spec.variants["gpu_images"].value = spack.variant.call_args[1]["default"]
    same("spack", {name: {False: "OFF"}.get(value, value) for name, value in package.cmake_args()}, OFF)


VCPKG = """cmake_minimum_required(VERSION 3.25)
foreach(name cmake_configure cmake_install cmake_config_fixup fixup_pkgconfig install_copyright)
  cmake_language(EVAL CODE "function(vcpkg_${name})\\n message(\\"\\${ARGV}\\")\\nendfunction()")
endforeach()
include(${CURRENT_PORT_DIR}/portfile.cmake)
"""


def check_vcpkg():
    """vcpkg is neither on PyPI nor in Debian: CMake runs the port with functions that print what they are told."""
    port = PACKAGING / "vcpkg" / "libmemopt"
    manifest = json.loads((port / "vcpkg.json").read_text())
    same("vcpkg", (manifest["name"], manifest["version"], manifest["license"]), ("libmemopt", version(), "MIT"))
    for linkage, archive in (("dynamic", "OFF"), ("static", "ON")):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "run.cmake")
            script.write_text(VCPKG)
            words = ["-DCURRENT_PORT_DIR=%s" % port, "-DCURRENT_PACKAGES_DIR=%s" % folder, "-DVCPKG_LIBRARY_LINKAGE=" + linkage]
            done = subprocess.run([tool("cmake"), *words, "-P", script], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        told = done.stderr.replace("\n", ";").split(";")
        same("vcpkg", defines(word for word in told if word.startswith("-D")), dict(OFF, MEMOPT_STATIC=archive))
        paths = [word for word in told if word.startswith("/")]
        same("vcpkg, sources and license", [os.path.realpath(path) for path in paths], [str(ROOT), str(ROOT / "LICENSE")])


if __name__ == "__main__":
    globals()["check_" + sys.argv[2]]()
