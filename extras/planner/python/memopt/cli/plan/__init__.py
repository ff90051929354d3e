"""Says what a training step of a model needs, phase by phase; what fits a card; and, where nothing
fits, which changes make it fit and what each costs. Numbers of live tensors are those of an exact
tracker on a step that has optimizer states already; overhead holds the rest.

  memopt plan --model config.json --batch 4 --seq 1024 --dtype bf16 --gpu-memory 24
  memopt plan --params 366M --optimizer adamw8bit --gpu-memory 8,16,24
  memopt plan --model config.json --auto --target-effective-batch 256 \\
      --apply --config-path train.yaml
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any, Dict, List, Optional, Tuple

from ...plan import Model
from ...sizes import format_size
from .. import FAILURE, SUCCESS, UsageError, apply
from ..output import Output
from ..pictures import check_picture
from . import answer, cards, describe, hfconfig, ofconfig, plot, profiled, show, traced, training
from .reserved import graphs_pool
from .waiting import waiting


_REFUSALS = (hfconfig.ConfigError, cards.NoCard, apply.ApplyError, traced.TraceFailed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    training.add_arguments(parser)
    describe.add_arguments(parser)
    cards.add_arguments(parser)
    group = parser.add_argument_group("answer")
    group.add_argument(
        "--fill",
        action="store_true",
        help="the largest micro-batch that fits, with as much less accumulation; with --from and without --batch "
        "this is what is answered",
    )
    group.add_argument(
        "--allow",
        choices=("other",),
        help="take changes that make another training too: 16-bit weights, LoRA, QLoRA, shorter samples",
    )
    group.add_argument("--details", action="store_true", help="show phases, layers and every change")
    group.add_argument("--plot", metavar="FILE", help="draw the breakdown: .png, .svg or .pdf")
    profiled.add_arguments(parser)
    apply.add_arguments(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Plans, prints, and changes files where that is asked for."""
    try:
        changing = apply.wanted(arguments)
        notes = training.fill_in(arguments)
    except apply.OptionError as error:
        raise UsageError(str(error)) from None
    except apply.ApplyError as error:
        output.error(str(error))
        return FAILURE
    try:
        return _plan(arguments, output, changing, notes)
    except _REFUSALS as error:
        output.error(str(error))
        return FAILURE


def _plan(arguments: argparse.Namespace, output: Output, changing: bool, notes: List[str]) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints is no answer
        description, measured, answers = _answers(arguments, changing)
    description.notes[:0] = notes
    assumed = describe.assumed(arguments, answers[0].plan)
    done = None
    if not output.wants_json:
        show.show(answers, description, assumed, output, arguments.details)
        if measured is not None:
            measured.show(output)
    if arguments.plot is not None:
        plot.plot(answers, arguments.plot, description.title)
    if changing:
        settings, required = _settings(answers[0], arguments)
        if not output.wants_json:
            print()  # the diff is a section of its own
        done = apply.run(arguments, settings, required, quiet=output.wants_json)
    if output.wants_json:
        result = answer.as_json(answers, description)
        result["assumed"] = assumed
        if measured is not None:
            result["profile"] = measured.as_json()
        if done is not None:
            result["apply"] = done
        output.json(result)
    return SUCCESS


def _answers(
    arguments: argparse.Namespace, changing: bool
) -> Tuple[describe.Description, Optional[profiled.Profiled], List[answer.Answer]]:
    with waiting("reading the model"):
        description, module = _described(arguments)
    chosen: List[Optional[cards.Card]] = [*cards.cards(arguments)] or [None]
    if changing and len(chosen) > 1:
        raise UsageError("--apply needs one card, not %d" % len(chosen))
    if arguments.plot is not None:
        check_picture(arguments.plot)
    measured = _measured(arguments, description)
    if description.model is None and module is None:
        module = measured or traced.Traced(arguments)
    if module is not None:
        description.notes.extend(module.notes)
        description = description._replace(run=module.run_of(description.run))
    source = module or answer.Played(description.model or Model())
    bare, target = cards.bare(arguments), arguments.target_effective_batch
    fill = arguments.fill or bool(arguments.from_files and "batch" in arguments.read)
    found = []
    bar = waiting("planning", len(chosen)) if module is None else contextlib.nullcontext(lambda: None)
    with bar as done:  # a trace has a bar of its own
        for card in chosen:
            run, told = describe.on_card(description.run, card)
            description.notes.extend(told)
            arguments.narrowed = bool(told)
            found.append(answer.answer(source, run, card, bare, target, fill, arguments.allow == "other"))
            done()
    pool = graphs_pool(found[0].proposed)
    if pool:
        text = "CUDA graphs: %s of a private pool are counted, as much as the activations at their peak"
        description.notes.append(text % format_size(pool))
    if module is not None and (arguments.details or set(module.target.settings) - {"sequence"}):
        growth = module.growth(found[0].plan.run, found[0].plan.model)
        description.notes.extend(each.sentence() for each in growth)
    return description, measured, found


def _described(arguments: argparse.Namespace) -> Tuple[describe.Description, Optional[traced.Traced]]:
    """The model and the run; and what traces a configuration that is not known."""
    if describe.traced(arguments):
        return traced.describe(arguments), None
    try:
        return describe.describe(arguments), None
    except hfconfig.UnknownModel as unknown:
        obstacle = ofconfig.obstacle(arguments.model)
        if obstacle is not None:
            raise hfconfig.UnknownModel("%s%s" % (unknown, obstacle)) from None
        if arguments.profile is not None:
            return ofconfig.description(arguments), None
        module = ofconfig.TracedConfig(arguments, unknown)
        return ofconfig.description(arguments), module


def _measured(arguments: argparse.Namespace, description: describe.Description) -> Optional[profiled.Profiled]:
    if arguments.profile is None:
        return None
    if arguments.model is None:
        raise UsageError("--profile runs a module: --model config.json or module:function")
    module = profiled.Profiled(arguments, description)
    module.measure()
    return module


def _settings(given: answer.Answer, arguments: argparse.Namespace) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """What --apply sets: what was asked for or changed; and what the plan does not hold without."""
    solution = given.solution
    if solution is not None and not solution.fits_after:
        raise apply.ApplyError("the plan found nothing that fits; no file was changed")
    applied = [change for change in solution.changes if change.applied] if solution else []
    changed = {change.kind: change.change for change in applied if change.kind != "micro_batch"}
    run = given.run
    if given.raised:
        changed["micro_batch"] = changed["accumulation"] = "the larger micro-batch"
    # 16-bit weights are another thing than autocast, and a file must say which.
    pure = not run.compute_dtype and describe.dtype_word(run) != "fp32"
    engine = "deepspeed_" if arguments.of_deepspeed else ""
    values = {
        "dtype": (
            training.asked(arguments, "dtype") or training.asked(arguments, "autocast"),
            describe.dtype_word(run) + ("-true" if pure else ""),
        ),
        "optimizer": (training.asked(arguments, "optimizer"), describe.optimizer_word(run)),
        "checkpointing": (training.asked(arguments, "checkpointing"), run.checkpointing or "none"),
        "sequence": ("sequence" in arguments.said and training.asked(arguments, "seq"), run.sequence),
        "images": (training.asked(arguments, "images"), run.images),
        "positives": (training.asked(arguments, "positives"), run.positives),
        "negatives": (training.asked(arguments, "negatives"), run.negatives),
        "lora": (training.asked(arguments, "lora"), given.model.lora_rank),
        "quantize": (training.asked(arguments, "quantize"), given.model.quantize),
        "loss": (training.asked(arguments, "loss"), run.loss),
        "offload": (training.asked(arguments, "offload"), ",".join(run.offload or ["none"])),
        "sharding": (training.asked(arguments, "zero"), engine + (run.sharding or "")),
        "attention": (training.asked(arguments, "attention"), run.attention),
    }
    settings: Dict[str, Any] = {"micro_batch": run.batch or 1, "accumulation": run.accumulation or 1}
    if arguments.narrowed:
        changed["dtype"] = "fp16 in place of bf16, which the card has not"
    if training.asked(arguments, "quantize") not in (None, "none"):
        changed.setdefault("quantize", "weights of %s" % arguments.quantize)
    for name, (asked, value) in values.items():
        if asked or name in changed:
            settings[name] = value
    return settings, changed
