#!/usr/bin/env python3
"""Writes docs/benchmarks/optim-torch.md from what torch_optim.py measured, here on two instruction sets.

    RULES="AdamW Adam Lion SGD RMSprop Adagrad AdEMAMix Adafactor LAMB LARS host"
    run() { python tests/bench/torch_optim.py --rounds 12 --json $1.json "${@:2}"; }
    run avx512 --peers torch bitsandbytes deepspeed --rules $RULES
    run avx512_1 --peers torch deepspeed --rules AdamW host --threads 1
    export MEMOPT_ISA=avx2 ATEN_CPU_CAPABILITY=avx2
    run avx2 --peers torch --rules $RULES
    run avx2_1 --peers torch --rules AdamW host --threads 1
    python tests/bench/torch_optim_page.py avx512.json avx2.json avx512_1.json avx2_1.json
"""

import datetime
import json
import os
import sys

import report

PAGE = report.ROOT / "docs" / "benchmarks" / "optim-torch.md"
HEAD = """# Benchmark: optimizers for torch

%s, on %d processors that `/proc/cpuinfo` calls "%s"; torch %s, %d threads, best of %d rounds in which all
cases of a rule alternate. Each half is one run. ns a parameter for a whole `optimizer.step()`, each with new
gradients; `copy` is torch's own `copy_` of as many bytes as the step reads and writes (two moments, the parameter,
the gradient); `peer` is the fastest of torch's fused or foreach form, bitsandbytes, and for AdamW DeepSpeedCPUAdam.
Above 1.00 ours is slower. With bf16 parameters torch's states are bf16 too and ours fp32: ours then move more bytes. *dynamic*: with
`codes="dynamic"`. Two names are the fastest of each half.

In the avx2 half torch keeps to AVX2 too; bitsandbytes and DeepSpeed cannot be told to and are left out.
bitsandbytes' AdamW8bit takes %s ns. torchao's AdamW8bit, AdamW4bit and AdamWFp8 took 5 to 66 times as long as torch's
fused AdamW in a run of their own beside other work (`--rounds 1 --peers torch torchao --rules AdamW`), on large tensors and
without their compilation, which goes before and took 20 to 100 s a class; so no row changes with them.

```sh
%s
```
"""


def table_of(files, name):
    rows = {}
    for i, file in enumerate(files):
        for row in file["rows"]:
            if row["table"] == name and row["case"].startswith("memopt"):
                rows.setdefault(row["case"][len("memopt ") :], {})[i] = row
    titles = [
        "%s: %s" % (file["isa"], title) for file in files for title in ("ns", "÷ copy", "÷ peer")
    ]
    lines = ["| class | peer | %s |" % " | ".join(titles), "|---|---|" + "---|" * len(titles)]
    for case, found in rows.items():
        peers = dict.fromkeys(found[i]["peer"] for i in sorted(found) if found[i]["peer"])
        cells = []
        for i in range(len(files)):
            ratios = found[i]["ratios"] if i in found else [None, None]
            cells.append("%.3f" % found[i]["ns"] if i in found else "")
            cells += ["" if ratio is None else "%.2f" % ratio for ratio in ratios[:2]]
        lines.append("| %s | %s | %s |" % (case, " / ".join(peers), " | ".join(cells)))
    return "\n".join(lines)


def notes():
    """What the page says between its commands and its tables, which is written by hand."""
    return PAGE.read_text(encoding="utf-8").split("\n```\n", 1)[1].split("\n## ", 1)[0].strip("\n")


def main(paths):
    files = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            files.append(json.load(file))
    commands = "\n".join(line[4:] for line in __doc__.splitlines() if line.startswith("    "))
    first = files[0]
    here = (datetime.date.today(), os.cpu_count(), report.cpu_model())
    theirs = [row["ns"] for row in first["rows"] if row["case"] == "bitsandbytes AdamW8bit"]
    span = "%.0f to %.0f" % (min(theirs), max(theirs))
    text = [HEAD % (*here, first["torch"], first["threads"], first["rounds"], span, commands), notes() + "\n"]
    for threads in dict.fromkeys(file["threads"] for file in files):
        halves = [file for file in files if file["threads"] == threads]
        for name in dict.fromkeys(row["table"] for row in halves[0]["rows"]):
            words = name if threads == first["threads"] else "%s, threads: %d" % (name, threads)
            text.append("## %s\n\n%s\n" % (words, table_of(halves, name)))
    PAGE.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
