"""What options and DeepSpeed's own configuration make of a run."""

import argparse
import json

import pytest

from memopt.cli import UsageError
from memopt.cli.plan import describe

MODEL = ["--hidden", "512", "--layers", "4", "--vocab", "8000"]


def described(*words):
    """The run of command-line words."""
    parser = argparse.ArgumentParser()
    describe.add_arguments(parser)
    return describe.describe(parser.parse_args([*MODEL, *words]))


def run_of(*words):
    """Its fields that are not 0."""
    return described(*words).run.as_dict()


@pytest.fixture
def config(tmp_path):
    """Writes a configuration; gives the option for it."""

    def write(**values):
        path = tmp_path / "ds.json"
        path.write_text(json.dumps(values))
        return ["--deepspeed-config", str(path)]

    return write


def test_the_bucket_is_in_elements():
    words = ["--zero", "2", "--world-size", "4", "--zero-engine", "deepspeed"]
    assert run_of(*words)["zero_engine"] == "deepspeed"
    assert "bucket_bytes" not in run_of(*words)
    assert run_of(*words, "--reduce-bucket-size", "5e8")["bucket_bytes"] == 2 * 10**9
    assert run_of(*words, "--reduce-bucket-size", "50M")["bucket_bytes"] == 2 * 10**8
    words += ["--reduce-bucket-size", "1000", "--dtype", "bf16"]
    assert run_of(*words)["bucket_bytes"] == 2000


def test_one_device_will_do():
    assert run_of("--zero", "3", "--zero-engine", "deepspeed")["sharding"] == "zero3"
    with pytest.raises(UsageError, match="--world-size of 2"):
        described("--zero", "3")


def test_a_configuration_says_it_all(config):
    words = config(
        zero_optimization={
            "stage": 3,
            "reduce_bucket_size": 1e6,
            "stage3_prefetch_bucket_size": 0,
            "stage3_param_persistence_threshold": 10,
            "stage3_max_live_parameters": 3000000,
            "stage3_max_reuse_distance": 0,
            "sub_group_size": 1e9,
            "contiguous_gradients": True,
            "overlap_comm": True,
            "round_robin_gradients": False,
        },
        bf16={"enabled": True},
        train_micro_batch_size_per_gpu=3,
        gradient_accumulation_steps=2,
    )
    run = run_of(*words)
    wanted = {
        "zero_engine": "deepspeed", "sharding": "zero3", "weight_dtype": "bf16", "batch": 3,
        "accumulation": 2, "bucket_bytes": 2 * 10**6, "overlap_comm": "yes",
    }  # fmt: skip
    assert {name: run[name] for name in wanted} == wanted
    assert run_of(*words, "--reduce-bucket-size", "7")["bucket_bytes"] == 14


def test_auto_is_what_the_trainer_fills_in(config):
    words = config(
        zero_optimization={
            "stage": 3,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "overlap_comm": "auto",
        },
        bf16={"enabled": "auto"},
        train_micro_batch_size_per_gpu="auto",
    )
    run = run_of(*words)
    assert run["bucket_bytes"] == 4 * 512 * 512
    assert run["weight_dtype"] == "fp32" and "overlap_comm" not in run and "batch" not in run


ZERO = {"stage": 2}


@pytest.mark.parametrize(
    "values, said",
    [
        ({}, "zero_optimization.stage: 0"),
        ({"zero_optimization": {"stage": 4}}, "stage: 4"),
        ({"zero_optimization": 3}, "zero_optimization: an object"),
        ({"zero_optimization": {**ZERO, "offload_optimizer": {"device": "cpu"}}}, "offload_opt"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "offload_param"),
        ({"zero_optimization": {**ZERO, "round_robin_gradients": True}}, "round_robin_gradients"),
        ({"zero_optimization": {**ZERO, "reduce_scatter": False}}, "reduce_scatter"),
        ({"zero_optimization": {**ZERO, "zero_hpz_partition_size": 8}}, "zero_hpz"),
        ({"zero_optimization": {**ZERO, "reduce_bucket_size": "big"}}, "reduce_bucket_size"),
        ({"zero_optimization": {**ZERO, "reduce_bucket_size": -1}}, "from 0 to"),
        ({"zero_optimization": {**ZERO, "reduce_bucket_size": float("inf")}}, "from 0 to"),
        ({"zero_optimization": {**ZERO, "reduce_bucket_size": 1.5}}, "not an integer"),
        ({"zero_optimization": {**ZERO, "reduce_bucket_size": True}}, "not an integer"),
        ({"zero_optimization": {**ZERO, "contiguous_gradients": False}}, "contiguous_grad"),
        ({"zero_optimization": {**ZERO, "overlap_comm": 1}}, "not true or false"),
        ({"zero_optimization": ZERO, "data_types": {"grad_accum_dtype": "fp32"}}, "grad_accum"),
        ({"zero_optimization": ZERO, "torch_autocast": {"enabled": True}}, "torch_autocast"),
        ({"zero_optimization": ZERO, "communication_data_type": "fp16"}, "communication_data"),
        ({"zero_optimization": ZERO, "train_micro_batch_size_per_gpu": 1.5}, "train_micro"),
    ],
)
def test_what_is_not_known_is_said(config, values, said):
    with pytest.raises(UsageError, match=said):
        described(*config(**values))


def test_options_and_configuration_agree(config):
    words = config(zero_optimization=ZERO, bf16={"enabled": True})
    for more in (["--zero", "3"], ["--dtype", "fp16"], ["--zero-engine", "torch"]):
        with pytest.raises(UsageError, match="--"):
            described(*words, *more)
    assert run_of(*words, "--zero", "2", "--dtype", "bf16")["sharding"] == "zero2"


def test_files_that_are_none(tmp_path):
    for text, said in ((None, "no such file"), ("{", "not JSON"), ("[]", "not a JSON object")):
        path = tmp_path / "x.json"
        if text is not None:
            path.write_text(text)
        with pytest.raises(UsageError, match=said):
            described("--deepspeed-config", str(path))


@pytest.mark.parametrize(
    "words", [["--zero-engine", "deepspeed"], ["--reduce-bucket-size", "9"],
              ["--zero-engine", "deepspeed", "--zero", "0"]]
)  # fmt: skip
def test_a_stage_and_an_engine_are_needed(words):
    with pytest.raises(UsageError, match="--zero"):
        described(*words)


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "many", "1e30", "nan", "inf", ""])
def test_a_bucket_is_a_count(text, capsys):
    with pytest.raises(SystemExit):
        described("--reduce-bucket-size", text)
    assert "not a count of elements" in capsys.readouterr().err
