"""The programs of docs/guide/pytorch*.md run, as do those with torch on the pages of the savers, and
their tables name what there is."""

from __future__ import annotations

import pathlib
import operator
import re
import types

import pytest
import torch

import memopt.torch as mt

import fit_models
import stream_models

HERE = pathlib.Path(__file__).resolve().parent
GUIDE = HERE.parents[3] / "docs" / "guide"

pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not beside this package")


#: The budget of a small Llama with adapters, of which the page says 8 GB.
LITTLE = 2200 << 10


def text_of(name):
    return (GUIDE / name).read_text(encoding="utf-8")


def snippets(name):
    """The Python programs of a page, compiled."""
    found = re.findall(r"```python\n(.*?)```", text_of(name), re.S)
    return [compile(program, "%s, program %d" % (name, i), "exec") for i, program in enumerate(found)]


def test_no_program_of_the_pages_is_left_out():
    counts = {page.name: len(snippets(page.name)) for page in sorted(GUIDE.glob("pytorch*.md"))}
    assert {name: n for name, n in counts.items() if n} == {
        "pytorch.md": 1,
        "pytorch-8gb.md": 1,
        "pytorch-distributed.md": 3,
        "pytorch-frameworks.md": 1,
        "pytorch-memory.md": 5,
    }


def test_the_page_of_budgets(capsys):
    pytest.importorskip("transformers")
    model, _ = fit_models.gpt2(layers=1)
    program, _ = snippets("fit.md")
    names = {"model": model, "optimizer": mt.AdamW8bit(model.parameters()), "ids": torch.randint(0, 512, (2, 64))}
    exec(program, names)
    assert "8.00 GiB" in capsys.readouterr().out and names["fit"].choices == []


def test_a_model_larger_than_the_card(tmp_path, monkeypatch, capsys):
    """The same bits as without a budget."""
    transformers = pytest.importorskip("transformers")
    save_file = pytest.importorskip("safetensors.torch").save_file
    monkeypatch.chdir(tmp_path)
    plain, _ = fit_models.llama(layers=4)
    save_file({name: value.clone() for name, value in plain.state_dict().items()}, "model.safetensors")
    ids = torch.randint(0, 512, (2, 64))
    stream_models.adapted(plain)
    text = text_of("fit.md").replace('"cuda"', '"cpu"').replace('"8GB"', "%d" % LITTLE)
    monkeypatch.setitem(globals(), "text_of", lambda name: text)
    names = {"torch": torch, "config": plain.config, "add_adapters": stream_models.adapted, "ids": ids}
    torch.manual_seed(7)
    exec(snippets("fit.md")[1], names)
    assert "streams      4 layers" in capsys.readouterr().out and names["fit"].measured <= LITTLE
    for model in (plain, names["model"]):
        model.zero_grad()
        torch.manual_seed(1)
        model(input_ids=ids, labels=ids).loss.backward()
    pairs = [(p.grad, q.grad) for p, q in zip(plain.parameters(), names["model"].parameters()) if p.requires_grad]
    assert pairs and all(torch.equal(*pair) for pair in pairs)


def test_the_page_of_streams(monkeypatch):
    class Model(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.layers, self.head = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3)), torch.nn.Linear(64, 4)
            self.model = types.SimpleNamespace(layers=self.layers)

    monkeypatch.setitem(globals(), "text_of", lambda name, page=text_of("stream.md"): page.replace('"cuda"', '"cpu"'))
    adapters, training, meta = snippets("stream.md")
    model = Model(None)
    names = {"torch": torch, "model": model, "Model": Model, "config": None, "add_adapters": lambda model: model.head.requires_grad_()}
    exec(adapters, names)
    assert "a step copies" in names["stream"].table()
    names["stream"].remove()
    model.requires_grad_()
    exec(training, names)
    model.head(model.layers[0](torch.randn(2, 64))).sum().backward()
    names["optimizer"].step()
    names["state"] = model.state_dict()
    exec(meta, names)
    assert torch.equal(names["model"].state_dict()["layers.2.weight"], names["state"]["layers.2.weight"])


@pytest.mark.parametrize("page", ("pytorch.md", "pytorch-8gb.md"))
def test_the_program_learns(page, capsys):
    if page == "pytorch-8gb.md":
        pytest.importorskip("transformers")
    (program,) = snippets(page)
    exec(program, {})
    first, last = map(float, re.findall(r"loss ([\d.]+)", capsys.readouterr().out))
    assert last < 0.9 * first


def test_a_model_of_transformers_takes_our_checkpoint():
    pytest.importorskip("transformers")
    (program,) = snippets("pytorch-frameworks.md")
    names = {}
    exec(program, names)
    model, tokens = names["model"], names["tokens"]
    assert {layer._gradient_checkpointing_func for layer in model.model.layers} == {mt.checkpoint}
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model._set_gradient_checkpointing(enable=False)
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), ours))


def test_the_programs_of_the_memory_page(tmp_path, monkeypatch, capsys):
    """Where there is no GPU the allocator says so, and what goes on without it is run without it."""
    first, second = snippets("pytorch-memory.md")[:2]  # the others: test_torch_pausing.py
    model = torch.nn.Linear(20, 30)
    optimizer = mt.AdamW8bit(model.parameters())

    def train_one_batch():
        model(torch.ones(4, 20)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    names = {"mt": mt, "model": model, "optimizer": optimizer, "train_one_batch": train_one_batch}
    names.update(train=train_one_batch, build=lambda: torch.ones(9, device="cuda"))
    monkeypatch.chdir(tmp_path)
    if not torch.cuda.is_available():
        for program in (first, second):
            with pytest.raises(RuntimeError, match="sees no GPU"):
                exec(program, dict(names))
        monkeypatch.setattr(mt, "enable_allocator", lambda config: None)
        exec(first, dict(names))
        assert "weights" in capsys.readouterr().out
    else:
        exec(second, dict(names))  # the first has to come before any tensor of a GPU


def step_of(names):
    """A step of a program's model and optimizer, which moves the model."""
    weight = names["model"].weight
    names["model"](names["batch"].to(weight.dtype)).sum().backward()
    before = weight.detach().clone()
    names["optimizer"].step()
    assert not torch.equal(weight, before)


def test_the_programs_of_the_savers_pages(tmp_path, monkeypatch):
    """Each with a small model around it; without a GPU, what is for one is for the CPU."""
    from safetensors.torch import save_file

    pages = {"optimizer.md": 10, "checkpoint.md": 1, "offload.md": 2, "cast.md": 1}
    assert {page: len(snippets(page)) for page in pages} == pages
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    model = torch.nn.Sequential()
    model.blocks = torch.nn.Sequential(*layers)
    names = {"model": model, "block": layers[0], "batch": torch.ones(4, 8)}
    exec(snippets("optimizer.md")[0], names)
    names["x"] = torch.ones(4, 8, requires_grad=True)
    exec(snippets("checkpoint.md")[0], names)
    assert torch.equal(names["y"], model.blocks(names["x"]))
    exec(snippets("offload.md")[0], names)
    names["optimizer"].step()
    assert len(names["optimizer"].state) == 6
    names["tokens"], names["targets"] = torch.randn(1024, 8), torch.randint(0, 8, (1024,))
    names["cross_entropy"] = torch.nn.functional.cross_entropy
    exec(snippets("offload.md")[1], names)
    for program in snippets("optimizer.md")[1:3]:
        exec(program, names)
    assert len(names["plain"].state) == 6
    before = layers[0].weight.detach().clone()
    model(names["batch"]).sum().backward()
    assert layers[0].weight.grad is None and not torch.equal(layers[0].weight, before)
    exec(snippets("optimizer.md")[3], names)
    chosen = [len(names[name].param_groups[0]["params"]) for name in ("muon", "adamw")]
    assert chosen == [3, 3]
    for program in snippets("optimizer.md")[4:7]:
        names["model"] = torch.nn.Linear(8, 8)
        exec(program, names)
        step_of(names)
    names["model"] = torch.nn.Linear(8, 8).bfloat16()
    exec(snippets("optimizer.md")[7], names)
    step_of(names)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    names["model"] = torch.nn.Linear(8, 8).bfloat16()
    exec(snippets("optimizer.md")[8], names)
    before = names["model"].weight.detach().clone()
    names["model"](torch.ones(4, 8).bfloat16()).sum().backward()
    assert not torch.equal(before, names["model"].weight)
    (tmp_path / "checkpoint").mkdir()
    save_file(torch.nn.Linear(8, 1).state_dict(), "checkpoint/model.safetensors")

    class Model(torch.nn.Linear):
        def __init__(self, config):
            super().__init__(*config)

        def forward(self, batch):
            return super().forward(batch).float().mean()

    (text,) = re.findall(r"```python\n(.*?)```", text_of("cast.md"), re.S)
    if not torch.cuda.is_available():
        text = text.replace('"cuda"', '"cpu"').replace("GradScaler()", 'GradScaler("cpu")')
    load, train = text.split("\nscaler = ")
    names = {"Model": Model, "config": (8, 1)}
    exec(load, names)
    assert names["model"].weight.dtype == torch.bfloat16
    # Halves are for the file; a scaler is for weights in fp32.
    names["model"].float()
    before = names["model"].weight.detach().clone()
    names["optimizer"] = mt.AdamW(names["model"].parameters())
    names["batches"] = 3 * [torch.ones(4, 8, device=before.device)]  # the first overflows
    exec("scaler = " + train, names)
    assert not torch.equal(before, names["model"].weight)
    # The last one needs an engine: test_torch_deepspeed.py has one.


def _distributed(rank, path):
    import torch.distributed as dist

    first, second, third = snippets("pytorch-distributed.md")
    names = {"path": path}
    started, dist.init_process_group = dist.init_process_group, lambda backend: None
    try:
        exec(first, names)  # in a group that is there already
    finally:
        dist.init_process_group = started
    model, optimizer = names["model"], names["optimizer"]
    model(torch.ones(3, 100)).square().mean().backward()
    optimizer.step()
    exec(second, names)
    names.update(path=path + "-portable", mt=mt)
    exec(third, names)
    kept = next(iter(names["states"]["state"].values()))["exp_avg"]
    assert kept.dtype is torch.float32 and type(kept).__name__ == "DTensor"
    return [type(state["exp_avg"]).__name__ for state in optimizer.state.values()]


def test_the_programs_of_the_distributed_page(one, tmp_path):
    assert one.run(_distributed, str(tmp_path / "checkpoint")) == [["Tensor", "Tensor"]]


def test_the_table_names_what_there_is():
    rows = re.findall(r"^\| .*? \| (`.*?) \| .* \| \[", text_of("pytorch.md"), re.M)
    names = set(re.findall(r"`([\w.]+)[(`]", " ".join(rows)))
    assert {"AdamW8bit", "checkpoint_sequential", "enable_allocator"} <= names and len(names) > 14
    for name in names:
        assert operator.attrgetter(name)(mt), name


def test_the_tests_that_the_page_of_tests_names_are_there():
    """The last column of each table; the first has torch's."""
    files = {page.name: page.read_text(encoding="utf-8") for page in HERE.glob("test_*.py")}
    there = set(re.findall(r"^def (test_\w+)", "\n".join(files.values()), re.M)) | set(files)
    named = set()
    for line in text_of("../pytorch-tests.md").splitlines():
        if line.startswith("| "):
            last = line.rstrip("| ").rsplit("|", 1)[1]
            named |= set(re.findall(r"`(test_\w+(?:\.py)?)`", last))
    assert len(named) > 80 and not sorted(named - there)
