"""`memopt info` as a subprocess, as a user runs it: without drivers, on simulated ones, on broken
ones. The simulated drivers are those of the build that MEMOPT_LIBRARY is from."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import memopt
import memopt.cli
from cli_support import BUILD, Terminal, command, environment, without
from json_schema import load, validate
from memopt.cli.info import briefly, driver_version

DRIVERS = os.path.join(BUILD, "tests", "sim", "lib")
SCHEMA = load("info")

simulated = pytest.mark.skipif(
    not os.path.exists(os.path.join(DRIVERS, "libcuda.so.1")),
    reason="no simulated drivers beside " + memopt.library_path,
)


def info(*folders, **variables):
    """What --json says, checked against the schema."""
    result = command("info", "--json", folders=folders, **variables)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    value = json.loads(result.stdout)
    validate(value, SCHEMA)
    assert [backend["name"] for backend in value["backends"]] == ["cpu", "cuda", "hip"]
    return {**value, **{backend["name"]: backend for backend in value["backends"]}}


def text(*folders, **variables):
    result = command("info", folders=folders, **variables)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "" and "\x1b" not in result.stdout
    return result.stdout


# --- no driver ------------------------------------------------------------------------------------


def test_the_library_and_the_cpu(monkeypatch):
    monkeypatch.delenv("MEMOPT_ISA", raising=False)  # as for the command
    found = info()
    assert found["version"] == memopt.__version__
    assert found["library"] == os.path.abspath(memopt.library_path)
    cpu = found["cpu"]
    assert cpu["available"] and cpu["status"] == "OK" and cpu["driver"] is None
    (device,) = cpu["devices"]
    with memopt.Device("cpu") as ours:
        properties = ours.properties
    assert device["properties"]["isa"] == properties.isa == properties.kernels.split("-")[0]
    assert device["properties"]["memory_total"] == properties.total_memory
    kernels = {"form": "native", "image": properties.kernels, "limit": properties.limit or None}
    assert device["properties"]["kernels"] == kernels


def test_why_no_better_instruction_set_is_used():
    best = info()["cpu"]["devices"][0]["properties"]["kernels"]
    if best["image"] == "scalar":
        pytest.skip("this machine has scalar kernels only")
    reason = "MEMOPT_ISA=scalar; this machine has " + best["image"]
    forced = info(MEMOPT_ISA="scalar")["cpu"]["devices"][0]["properties"]["kernels"]
    assert forced == {"form": "native", "image": "scalar", "limit": reason}
    assert re.search("cpu:0 +kernels run as scalar: " + reason, text(MEMOPT_ISA="scalar"))


@pytest.mark.parametrize("name, file", [("cuda", "libcuda.so.1"), ("hip", "libamdhip64.so")])
def test_no_driver(name, file, tmp_path):
    backend = info(tmp_path)[name]
    assert backend["driver"]["library"] is None
    assert backend["status"] == "DRIVER_MISSING" and not backend["available"]
    assert file in backend["driver"]["tried"]
    assert file + ": in no folder of MEMOPT_DRIVER_PATH" in backend["problem"]
    assert backend["driver"]["version"] is None and backend["devices"] == []
    shown = text(tmp_path)
    assert name + ": cannot be used" in shown
    assert briefly(backend["problem"]) in shown and "install the" in shown


def test_no_devices_opens_none():
    result = command("info", "--json", "--no-devices")
    assert result.returncode == 0
    value = json.loads(result.stdout)
    validate(value, SCHEMA)
    assert value["backends"][0]["devices"] == [] and value["backends"][0]["device_count"] == 1


# --- simulated drivers ----------------------------------------------------------------------------


@simulated
def test_simulated_cuda():
    found = info(DRIVERS, MEMOPT_SIM_MEMORY="64M", MEMOPT_SIM_CAPABILITY="8.6")
    cuda = found["cuda"]
    assert cuda["available"] and cuda["status"] == "OK" and cuda["problem"] is None
    assert cuda["driver"]["library"] == os.path.join(DRIVERS, "libcuda.so.1")
    assert cuda["driver"]["version"] == "13.0" and cuda["driver"]["version_number"] == 13000
    assert cuda["driver"]["missing"] == [] and cuda["features"]["virtual_memory"]
    assert cuda["device_count"] == len(cuda["devices"]) == 2
    assert cuda["devices"][1]["device"] == "cuda:1" and cuda["devices"][1]["error"] is None
    properties = cuda["devices"][1]["properties"]
    assert properties["name"] == "libmemopt simulated device" and properties["isa"] == "sm_86"
    assert properties["memory_total"] == properties["memory_free"] == 64 << 20
    assert properties["warp_size"] == 32 and properties["units"] == 8
    assert properties["allocation"] == "mapped" and properties["granularity"] == 2 << 20
    built_in = cuda["kernels"]["built_in"]
    images = [image for image in ("fatbin", "sm_86", "ptx75") if image in built_in] + ["source"]
    assert properties["kernels"]["image"] == images[0]  # the best that is there
    shown = text(DRIVERS, MEMOPT_SIM_MEMORY="64M", MEMOPT_SIM_CAPABILITY="8.6")
    assert re.search(r"cuda +ok +13\.0 libcuda\.so\.1 +2 ", shown)
    assert re.search(r"cuda:1 +libmemopt simulated device +sm_86 +64\.00 MiB +8 +32 ", shown)
    assert "falls back" not in shown


@simulated
def test_simulated_hip_without_virtual_memory():
    variables = dict(MEMOPT_SIM_VMM="0", MEMOPT_SIM_WARP="32", MEMOPT_SIM_DEVICES="1")
    hip = info(DRIVERS, **variables)["hip"]
    assert hip["available"] and hip["driver"]["version"] == "7.14.60850"
    assert hip["driver"]["library"] == os.path.join(DRIVERS, "libamdhip64.so")
    (device,) = hip["devices"]
    assert device["properties"]["virtual_memory"] is False
    assert device["properties"]["allocation"] == "plain"
    assert device["properties"]["isa"] == "gfx1030" and device["properties"]["warp_size"] == 32
    if "gfx1030" in hip["kernels"]["built_in"]:
        kernels = {"form": "code_object", "image": "gfx1030", "limit": None}
        assert device["properties"]["kernels"] == kernels
    shown = text(DRIVERS, **variables)
    assert re.search(r"hip:0 +no virtual memory .*falls back to plain allocation", shown)
    assert "the device has none" in shown


@simulated
def test_virtual_memory_of_an_old_hip_is_not_used():
    variables = dict(MEMOPT_SIM_DRIVER="70253211", MEMOPT_SIM_DEVICES="1")
    (device,) = info(DRIVERS, **variables)["hip"]["devices"]
    assert device["properties"]["allocation"] == "plain"
    why = device["properties"]["allocation_limit"]
    assert "HIP 7.2 is older than 7.14" in why and device["properties"]["kernels"]["limit"] is None
    shown = text(DRIVERS, **variables)
    assert "no virtual memory (%s): falls back" % why in " ".join(shown.split())


@simulated
def test_driver_without_an_optional_entry_point():
    cuda = info(DRIVERS, MEMOPT_SIM_MISSING="cuMemCreate")["cuda"]
    assert cuda["available"] and cuda["driver"]["missing"] == ["cuMemCreate"]
    assert not cuda["features"]["virtual_memory"]
    assert cuda["devices"][0]["properties"]["allocation"] == "plain"
    shown = text(DRIVERS, MEMOPT_SIM_MISSING="cuMemCreate")
    assert re.search(r"lacks +cuMemCreate\n", shown)
    assert "the driver lacks the calls" in shown


@simulated
@pytest.mark.parametrize("code, status", [(34, "DRIVER_MISSING"), (999, "DRIVER_ERROR")])
def test_driver_that_does_not_start(code, status):
    variables = {"MEMOPT_SIM_FAIL": "cuInit:1=%d" % code}
    cuda = info(DRIVERS, **variables)["cuda"]
    assert cuda["status"] == status and not cuda["available"] and cuda["devices"] == []
    assert cuda["driver"]["code"] == code
    assert "does not start" in cuda["problem"] and "(%d)" % code in cuda["problem"]
    assert ("the toolkit's stub" in cuda["problem"]) == (code == 34)
    shown = text(DRIVERS, **variables)
    assert "does not start" in shown and "update or reinstall the NVIDIA driver" in shown


def test_versions_of_drivers():
    for number, text in ((12040, "12.4"), (11080, "11.8"), (0, None)):
        assert driver_version("cuda", number) == text
    for number, text in ((60443482, "6.4.43482"), (71025424, "7.10.25424")):
        assert driver_version("hip", number) == text


@simulated
def test_driver_without_devices():
    cuda = info(DRIVERS, MEMOPT_SIM_FAIL="cuInit:1=100")["cuda"]
    assert cuda["available"] and cuda["device_count"] == 0
    assert cuda["problem"] == "no NVIDIA device"
    assert "cuda: usable; no device" in text(DRIVERS, MEMOPT_SIM_FAIL="cuInit:1=100")


@simulated
def test_a_device_that_cannot_be_opened_does_not_hide_the_others():
    variables = {"MEMOPT_SIM_FAIL": "cuDevicePrimaryCtxRetain:1=2"}
    first, second = info(DRIVERS, **variables)["cuda"]["devices"]
    assert first["properties"] is None and first["error"]["status"] == "OUT_OF_DEVICE_MEMORY"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in first["error"]["message"]
    assert second["error"] is None and second["properties"]["isa"] == "sm_80"
    assert re.search(r"cuda:0 +OUT_OF_DEVICE_MEMORY: .*CUDA_ERROR", text(DRIVERS, **variables))


@simulated
def test_hip_without_a_card():
    variables = {"MEMOPT_SIM_LOST": "101", "MEMOPT_SIM_MISSING": "hipLaunchHostFunc"}
    hip = info(DRIVERS, **variables)["hip"]
    if os.path.exists("/dev/kfd") or os.path.exists("/dev/dxg"):
        assert hip["status"] == "DRIVER_ERROR" and "hipErrorInvalidDevice (101)" in hip["problem"]
        return
    assert hip["status"] == "OK" and hip["device_count"] == 0
    shown = text(DRIVERS, **variables)
    assert re.search(r"why +no AMD device: /dev/kfd: ", shown)
    assert "make the card usable by its kernel driver" in shown
    assert "reinstall the ROCm" not in shown and "hipLaunchHostFunc" not in shown


# --- broken drivers -------------------------------------------------------------------------------

FILES = ["libcuda.so.1", "libamdhip64.so"]


@pytest.fixture
def built(tmp_path):
    """Makes drivers of a text in C; their folder."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")

    def build(text):
        if not compiler:
            pytest.skip("no C compiler")
        (tmp_path / "driver.c").write_text(text)
        for file in FILES:
            words = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / file), str(tmp_path / "driver.c")]
            subprocess.run(words, check=True)
        return tmp_path

    return build


def test_what_a_driver_prints_is_not_shown(built):
    folder = built(
        "#include <unistd.h>\n"
        "__attribute__((constructor)) static void print(void)\n"
        '{ if (write(2, "noise\\n", 6) != 6) _exit(3); }\n'
    )
    text(folder)  # which checks that standard error is empty
    assert "noise" in command("info", folders=[folder], MEMOPT_LOG="error").stderr


# --- the terminal ---------------------------------------------------------------------------------


def on_a_terminal(**variables):
    """What the command writes to a terminal of 150 columns."""
    terminal = Terminal("info", size=(50, 150), **variables)
    assert terminal.end()[0] == 0
    return terminal.text.decode().replace("\r\n", "\n")


def test_rich_tables_on_a_terminal():
    shown = on_a_terminal()
    assert "─" in shown and "\x1b[1m" in shown and "\x1b[32m" in shown
    colourless = on_a_terminal(NO_COLOR="1")
    assert "─" in colourless and not re.search("\x1b\\[[0-9;]*3[0-9]", colourless)
    dumb = on_a_terminal(TERM="dumb")
    assert "\x1b" not in dumb and "─" not in dumb


def test_plain_tables_without_rich(tmp_path):
    shown = on_a_terminal(PYTHONPATH=without(tmp_path, "rich"))
    assert "\x1b" not in shown and "─" not in shown
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 150
    head = next(i for i, line in enumerate(lines) if line.startswith("  device "))
    assert re.fullmatch(r"  -+(  -+)+", lines[head + 1])
    row = next(line for line in lines[head:] if line.startswith("  cpu:0 "))  # notes may follow
    with memopt.Device("cpu") as device:  # columns stand below each other
        assert lines[head].index("name") == row.index(device.name)


def test_piped_output_is_plain_and_whole():
    shown = text()
    problem = info()["cuda"]["problem"]
    assert problem is None or problem in shown  # long as it is: not wrapped, not cut


# --- usage and errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("frobnicate",), ("info", "--nonsense"), ("info", "more")])
def test_usage_errors(words):
    result = command(*words)
    assert result.returncode == 2
    assert result.stdout == "" and "usage: memopt" in result.stderr
    assert command("--version").stdout == "memopt %s\n" % memopt.__version__


@pytest.mark.parametrize("verb", [None, *memopt.cli.VERBS])
def test_help(verb, capsys):
    with pytest.raises(SystemExit) as left:
        memopt.cli.main([verb, "--help"] if verb else ["--help"])
    assert not left.value.code
    shown = capsys.readouterr().out
    if verb:
        assert "--json" in shown
    else:
        assert all(re.search(r"^ +%s\s" % each, shown, re.M) for each in memopt.cli.VERBS)


def test_an_error_of_the_library_is_told(monkeypatch, capsys):
    from memopt.cli import info as verb

    def refuse(arguments, output):
        raise memopt.NotFoundError(memopt.Status.NOT_FOUND, "the thing: gone; make another")

    monkeypatch.setattr(verb, "run", refuse)
    assert memopt.cli.main(["info"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "memopt: NOT_FOUND: the thing: gone; make another\n"


def test_a_verb_can_refuse_its_options(monkeypatch, capsys):
    from memopt.cli import info as verb

    def refuse(arguments, output):
        raise memopt.cli.UsageError("--a and --b do not go together")

    monkeypatch.setattr(verb, "run", refuse)
    with pytest.raises(SystemExit) as left:
        memopt.cli.main(["info"])
    assert left.value.code == 2
    assert "--a and --b do not go together" in capsys.readouterr().err


def test_a_reader_that_goes_away():
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "memopt", "info"], env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert result.returncode == 1 and result.stderr == ""


# --- the schemas ----------------------------------------------------------------------------------

KEYWORDS = {"$schema", "title", "description", "$defs", "$ref", "type", "required", "properties"}
KEYWORDS |= {"additionalProperties", "items", "enum", "minimum"}  # a misspelt one checks nothing
OPTIONAL = {"course", "rss", "pss", "locked", "allocated", "cached"}  # of a profile


def objects_of(schema):
    """The schemas of objects with members that have names."""
    if isinstance(schema, dict):
        if "object" in (schema.get("type") or ()) and "properties" in schema:
            yield schema
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else []:
        yield from objects_of(part)


@pytest.mark.parametrize("verb", sorted({*memopt.cli.VERBS} - {"plan"}))  # whose keys are options
def test_a_schema_leaves_nothing_open(verb):
    """Each object needs its members and has no others: a key that is lost or new is noticed."""
    objects = list(objects_of(load(verb)))
    assert objects
    for one in objects:
        assert one["additionalProperties"] is False and set(one) <= KEYWORDS
        for member in one["properties"].values():
            assert set(member) <= KEYWORDS, member
        assert set(one["properties"]) - set(one.get("required", ())) <= OPTIONAL


def test_values_are_checked_against_the_schema():
    pytest.importorskip("jsonschema")
    good = json.loads(command("info", "--json").stdout)
    validate(good, SCHEMA)
    for spoil in (
        lambda value: value.pop("version"),
        lambda value: value.update(extra=1),
        lambda value: value["backends"][0].update(name="tpu"),
        lambda value: value["backends"][0]["devices"][0]["properties"].update(units=-1),
        lambda value: value["backends"][0]["devices"][0]["properties"].update(units=True),
    ):
        bad = copy.deepcopy(good)
        spoil(bad)
        with pytest.raises(AssertionError):
            validate(bad, SCHEMA)
