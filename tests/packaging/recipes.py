#!/usr/bin/env python3
"""The recipes of packaging/: each is read by its tool, or skipped (77) where that is missing.

    recipes.py ROOT all|conan|conan_create|conda|nix|spack|vcpkg

"all" needs no tool: it compares the recipes with the build, whose settings and version they name.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types

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
        output(conan, "create", PACKAGING / "conan", "-c", folder, CONAN_HOME=home)


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
    """Spack is neither on PyPI nor in Debian: the recipe runs with names of its interface that write down what it says."""
    said = []

    def directive(name):
        return lambda *words, **named: said.append((name, words, named))

    class CMakePackage:
        @staticmethod
        def define(name, value):
            return "-D%s=%s" % (name, {True: "ON", False: "OFF"}.get(value, value))

    interface = types.ModuleType("spack.package")
    for name in ("license", "version", "variant", "depends_on", "conflicts"):
        setattr(interface, name, directive(name))
    cmake = types.ModuleType("spack_repo.builtin.build_systems.cmake")
    cmake.CMakePackage = CMakePackage
    sys.modules.update({"spack": types.ModuleType("spack"), interface.__name__: interface, cmake.__name__: cmake})
    path = PACKAGING / "spack" / "packages" / "libmemopt" / "package.py"
    names = {"__file__": str(path), "__name__": "package"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    package = names["Libmemopt"]()
    same("spack, source", package.git, ROOT.as_uri())
    chosen = next(named["default"] for name, words, named in said if words == ("gpu_images",))
    package.spec = types.SimpleNamespace(variants={"gpu_images": types.SimpleNamespace(value=chosen)})
    same("spack", defines(package.cmake_args()), OFF)


VCPKG = """cmake_minimum_required(VERSION 3.25)
function(vcpkg_cmake_configure)
  cmake_parse_arguments(P "" "SOURCE_PATH" "OPTIONS" ${ARGN})
  if(NOT EXISTS "${P_SOURCE_PATH}/CMakeLists.txt" OR P_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "source ${P_SOURCE_PATH}, also ${P_UNPARSED_ARGUMENTS}")
  endif()
  message("${P_OPTIONS}")
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(P "" "" "FILE_LIST" ${ARGN})
  if(NOT EXISTS "${P_FILE_LIST}")
    message(FATAL_ERROR "no ${P_FILE_LIST}")
  endif()
endfunction()
foreach(name vcpkg_cmake_install vcpkg_cmake_config_fixup vcpkg_fixup_pkgconfig)
  cmake_language(EVAL CODE "function(${name})\\nendfunction()")
endforeach()
include(${CURRENT_PORT_DIR}/portfile.cmake)
"""


def check_vcpkg():
    """vcpkg is neither on PyPI nor in Debian: CMake runs the port with functions that look at what they are told."""
    port = PACKAGING / "vcpkg" / "libmemopt"
    manifest = json.loads((port / "vcpkg.json").read_text())
    same("vcpkg", (manifest["name"], manifest["version"], manifest["license"]), ("libmemopt", version(), "MIT"))
    for linkage in ("dynamic", "static"):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "run.cmake")
            script.write_text(VCPKG)
            done = subprocess.run(
                [tool("cmake"), "-DCURRENT_PORT_DIR=%s" % port, "-DCURRENT_PACKAGES_DIR=%s" % folder,
                 "-DVCPKG_LIBRARY_LINKAGE=%s" % linkage, "-P", script], capture_output=True, text=True,
            )  # fmt: skip
        if done.returncode != 0:
            sys.exit(done.stderr)
        same("vcpkg", defines(done.stderr.strip().split(";")), dict(OFF, MEMOPT_STATIC="ON" if linkage == "static" else "OFF"))


if __name__ == "__main__":
    globals()["check_" + sys.argv[2]]()
