"""The options of --apply as a verb has them: what is printed, refused, and put into --json."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import pty
import shutil
import subprocess

import pytest

from apply_files import ALL, content, write
from json_schema import load, validate
from memopt.cli import apply
from memopt.cli.apply import transaction

SCHEMA = load("apply")
BEFORE = """{
  "per_device_train_batch_size": 16,
  "gradient_accumulation_steps": 1,
  "bf16": false,
  "optim": "adamw_torch",
  "gradient_checkpointing": false
}
"""
AFTER = """{
  "per_device_train_batch_size": 4,
  "gradient_accumulation_steps": 16,
  "bf16": true,
  "optim": "adamw_bnb_8bit",
  "gradient_checkpointing": true
}
"""


def parse(*words):
    parser = argparse.ArgumentParser(exit_on_error=False)
    apply.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def run(*words, settings=ALL):
    """What the options print, and what they return for --json."""
    out = io.StringIO()
    arguments = parse(*words)
    assert apply.wanted(arguments)
    value = apply.run(arguments, settings, stream=out)
    validate(json.loads(json.dumps(value)), SCHEMA)
    return out.getvalue(), value


@pytest.fixture
def path(tmp_path):
    return write(tmp_path, "c.json", BEFORE)


def test_apply(path):
    text, value = run("--apply", "--config-path", path)
    assert content(path).decode() == AFTER
    lines = text.splitlines()
    end = "\t" if " " in path else ""
    assert lines[:3] == ["--- " + path + end, "+++ " + path + end, "@@ -1,7 +1,7 @@"]
    assert '-  "per_device_train_batch_size": 16,' in lines
    assert '+  "per_device_train_batch_size": 4,' in lines
    assert lines[-1] == "%s: changed; what it was is in %s.backup" % (path, path)
    assert "\x1b" not in text
    assert value["done"] and not value["dry_run"] and value["action"] == "apply"
    (file,) = value["files"]
    assert file["preset"] == "transformers" and file["backup"] == path + ".backup"
    assert [change["line"] for change in file["changes"]] == [2, 3, 4, 5, 6]
    assert file["changes"][0] == {
        "setting": "micro_batch",
        "key": "per_device_train_batch_size",
        "line": 2,
        "old": 16,
        "new": 4,
        "added": False,
    }


def test_the_second_time(path):
    run("--apply", "--config-path", path)
    text, value = run("--apply", "--config-path", path)
    assert text == path + ": nothing to change\n"
    assert not value["done"] and value["files"][0]["backup"] is None
    assert not os.path.exists(path + ".backup.1")


def test_dry_run(path):
    text, value = run("--apply", "--dry-run", "--config-path", path)
    assert content(path).decode() == BEFORE and os.listdir(os.path.dirname(path)) == ["c.json"]
    assert '+  "bf16": true,' in text.splitlines()
    assert "would be changed; nothing was written (--dry-run)" in text
    assert value["dry_run"] and not value["done"] and value["files"][0]["changed"]


def test_restore(path):
    run("--apply", "--config-path", path)
    text, value = run("--restore", "--dry-run", "--config-path", path)
    assert "would be restored from %s.backup" % path in text and content(path).decode() == AFTER
    text, value = run("--restore", "--config-path", path, settings={})
    assert content(path).decode() == BEFORE
    assert text.splitlines()[-1] == "%s: restored from %s.backup" % (path, path)
    assert value["action"] == "restore" and value["files"][0]["backup"] == path + ".backup"
    text, value = run("--restore", "--config-path", path)
    assert text == "%s: nothing to change: it is as in %s.backup\n" % (path, path)


def test_backups_are_named_as_the_files_are(tmp_path, monkeypatch):
    write(tmp_path, "c.json", BEFORE)
    os.symlink("c.json", str(tmp_path / "d.json"))
    monkeypatch.chdir(tmp_path)
    text, value = run("--apply", "--config-path", "c.json")
    assert text.splitlines()[-1] == "c.json: changed; what it was is in c.json.backup"
    assert value["files"][0]["backup"] == str(tmp_path / "c.json.backup")
    text, _ = run("--restore", "--config-path", "d.json")
    assert text.splitlines()[-1] == "d.json: restored from %s/c.json.backup" % tmp_path


@pytest.mark.skipif(not shutil.which("patch"), reason="there is no patch here")
def test_the_diff_is_a_patch(tmp_path):
    texts = [BEFORE, BEFORE.rstrip("\n"), BEFORE.replace("\n", "\r\n"), '{"bf16":false,\x0c"x": 1}']
    texts[3] = '{"per_device_train_batch_size": 9, "x": "\u2028"}'
    settings = {"micro_batch": 4}
    paths = [write(tmp_path, "%d.json" % i, text) for i, text in enumerate(texts)]
    paths.append(write(tmp_path, "of two words.json", BEFORE))
    out = io.StringIO()
    apply.run(parse("--apply", "--dry-run", "--config-path", *paths), settings, stream=out)
    diff = "".join(line for line in out.getvalue().splitlines(True) if "--dry-run" not in line)
    command = ["patch", "-p0", "--binary", "-d", "/"]
    subprocess.run(command, input=diff.encode(), check=True, capture_output=True)
    assert apply.prepare(paths, settings).changed == []


def test_keys_and_values(tmp_path):
    path = write(tmp_path, "c.json", '{"a": {"b.c": "16", "opt": "mine", "p": "x"}}')
    run(
        "--apply", "--config-path", path, "--key", 'micro-batch=a."b.c"',
        "--key", "optimizer=a.opt", "--value", "optimizer=lion8bit",
        "--key", "dtype=a.p", "--value", "dtype=no",
    )  # fmt: skip
    assert json.loads(content(path)) == {"a": {"b.c": "4", "opt": "lion8bit", "p": "no"}}


def test_skip_missing(tmp_path):
    base = write(tmp_path, "base.json", '{"trainer": {"accumulate_grad_batches": 1}}')
    stage = write(tmp_path, "stage.json", '{"data": {"init_args": {"batch_size": 8}}}')
    words = ["--apply", "--config-path", base, stage]
    settings = {"micro_batch": 4, "accumulation": 16}
    with pytest.raises(apply.KeyMissing, match="base.json: it has no key data.init_args.batch_size"):
        run(*words, settings=settings)
    text, _ = run(*words, "--skip-missing", settings=settings)
    assert json.loads(content(base)) == {"trainer": {"accumulate_grad_batches": 16}}
    assert json.loads(content(stage)) == {"data": {"init_args": {"batch_size": 4}}}
    assert "base.json: micro_batch is not set: the file has no key data.init_args.batch_size" in text
    with pytest.raises(apply.KeyMissing, match="no file has a key for optimizer"):
        run(*words, "--skip-missing", settings={**settings, "optimizer": "adamw8bit"})


@pytest.mark.parametrize(
    "words, said",
    [
        (["--apply"], "--apply needs --config-path FILE"),
        (["--restore"], "--restore needs --config-path FILE"),
        (["--apply", "--restore", "--config-path", "x"], "exclude each other"),
        (["--config-path", "x"], "need --apply or --restore"),
        (["--dry-run"], "need --apply or --restore"),
    ],
)
def test_options_that_do_not_go_together(words, said):
    with pytest.raises(apply.OptionError, match=said):
        apply.wanted(parse(*words))


@pytest.mark.parametrize(
    "words, said",
    [
        (["--preset", "keras"], "'keras' is not a preset; presets are lightning, transformers"),
        (["--key", "micro_batch"], "is not SETTING="),
        (["--key", "micro_batch="], "is not SETTING="),
        (["--key", "batch=a.b"], "'batch' is not a setting; settings are micro_batch, accumulation"),
        (["--key", "dtype=a..b"], "has an empty part"),
        (["--key", "dtype=a."], "has an empty part"),
        (["--key", 'dtype="a'], "is not closed"),
        (["--key", 'dtype="a"b'], "a dot is missing"),
        (["--value", "batch=3"], "is not a setting"),
    ],
)
def test_malformed_options(words, said):
    with pytest.raises(argparse.ArgumentError, match=said):
        parse("--apply", *words)


def on_a_terminal(edits):
    """What show() prints there."""
    main, side = pty.openpty()
    with os.fdopen(side, "w") as stream:
        apply.options.show(edits, stream)
        print("END", file=stream, flush=True)
        text = ""
        while not text.endswith("END\r\n"):
            text += os.read(main, 65536).decode()
    os.close(main)
    return text


def test_colour_on_a_terminal_only(path, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    edits = apply.prepare([path], ALL)
    text = on_a_terminal(edits)
    assert '\x1b[31m-  "bf16": false,\x1b[0m' in text and '\x1b[32m+  "bf16": true,\x1b[0m' in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_a_terminal(edits)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in on_a_terminal(edits)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_file_cannot_steer_the_terminal(tmp_path, monkeypatch, term):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", term)
    path = write(tmp_path, "c.json", "{}\n")
    write(tmp_path, "c.json.backup", "{} \x1b]0;title\x07\x9b1m\r\n")
    text = on_a_terminal(apply.restore([path]))
    assert "\x1b" not in text and "\x07" not in text and "title" in text


def test_numbers_that_are_none(tmp_path):
    """--value writes what it is told, but no word where a number belongs."""
    parser = argparse.ArgumentParser()
    apply.add_arguments(parser)
    for text in ("micro_batch=abc", "micro_batch=0", "accumulation=-1", "micro_batch=true",
                 "accumulation=1.5"):  # fmt: skip
        with pytest.raises(SystemExit):
            parser.parse_args(["--value", text])
    for text, value in (("micro_batch=auto", "auto"), ("accumulation=8", 8), ("optimizer=x", "x")):
        assert parser.parse_args(["--value", text]).value[0][1] == value
    with pytest.raises(apply.OptionError, match="without a name"):
        apply.wanted(parser.parse_args(["--apply", "--config-path", ""]))


def test_a_folder_that_takes_no_file(tmp_path):
    """Said of the folder, not of a temporary file that nobody has heard of."""
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".a.memopt-1.tmp"))
    said = transaction._told(error, [])
    assert said == (
        "the folder %s takes no new file (Permission denied), and the backup belongs there. "
        "Every file is as it was" % tmp_path
    )
    error = OSError(errno.ENOSPC, "No space left on device", "a.yaml")
    assert transaction._told(error, []).startswith("a.yaml: No space left on device; make room")
