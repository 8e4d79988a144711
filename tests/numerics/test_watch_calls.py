"""What `watch` records of calls: arguments that are no tensors, models without an optimizer, compiled models."""

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from numerics.record.call_arguments import call_of, form_of, named_tensors
from numerics.record.watch import watch


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Adds what it is given in one of several forms."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x, bias=None, extra=None, more=None, *, scale=1.0):
        x = x if bias is None else x + bias
        x = x if extra is None else x * extra
        x = x if more is None else x + more["parts"][0]
        for block in self.blocks:
            x = block(x)
        return x * scale


def built():
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


CALLS = {
    "None by position": lambda x, other: ((x, None, other), {}),
    "a number by name": lambda x, other: ((x, other), {"scale": 0.5}),
    "a list in a mapping": lambda x, other: ((x,), {"more": {"parts": [other, None]}}),
    "another type by name": lambda x, other: ((x, other), {"more": None, "scale": torch.Size([])}),
}


def train(out, call=lambda x, _: ((x,), {}), around=lambda model: model, optimizer=True):
    model, steps = built()
    made = around(model)
    watcher = (
        watch(made, steps, out=out, level="tensors") if optimizer else watch(made, out=out, level="tensors")
    )
    for step in range(2):
        drawn = torch.Generator().manual_seed(step)
        given, other = torch.randn(4, 8, generator=drawn), torch.rand(4, 8, generator=drawn)
        args, kwargs = call(given, other)
        if "scale" in kwargs and not isinstance(kwargs["scale"], float):
            model.forward = lambda x, bias, more=None, scale=None: Model.forward(model, x, bias, more=more)
        loss = made(*args, **kwargs).square().mean()
        if optimizer:
            loss.backward()
            steps.step()
            steps.zero_grad()
    watcher.close()
    return out


def proved(folder):
    return compare(folder, None, Options(prove=lambda run: prove(run, *built())))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.quick(1)
def test_calls_are_replayed_as_they_were_made(name, tmp_path):
    assert proved(train(tmp_path, CALLS[name])).verdict == "identical"


def test_call_of_tensors_alone_keeps_no_form():
    assert form_of((torch.ones(1),), {"mask": torch.ones(1)}) is None


def test_damaged_form_of_a_call_is_refused():
    given = (torch.ones(1), None)
    raw = form_of(given, {}).numpy().tobytes()
    assert call_of(raw, named_tensors(given, {})) == ([given[0], None], {})
    for bad in (
        b"[",
        b"[]",
        b'{"args": 3, "kwargs": {}}',
        b'{"args": [{"tensor": "9"}], "kwargs": {}}',
        b"[" * 9999,
    ):
        assert call_of(bad, named_tensors(given, {})) is None


def test_forwards_need_no_optimizer(tmp_path):
    assert proved(train(tmp_path, optimizer=False)).verdict == "identical"


def compiled(model):
    return torch.compile(model, backend="aot_eager", fullgraph=True)


def in_place(model):
    model.compile(backend="aot_eager", fullgraph=True)
    return model


def by_blocks(model):
    model.blocks[0] = torch.compile(model.blocks[0], backend="aot_eager", fullgraph=True)
    model.blocks[1].compile(backend="aot_eager", fullgraph=True)
    return model


def tensors(folder):
    table = pq.read_table(folder / "capture" / "rank00000.parquet").to_pylist()
    return {
        (r["step"], r["phase"], r["tensor"], r["digest"]) for r in table if not r["tensor"].startswith("rng.")
    }


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler reads it
@pytest.mark.parametrize("around", [compiled, in_place, by_blocks])
@pytest.mark.quick(1)
def test_compiled_models_are_recorded_whole_graphs_and_all(around, tmp_path):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found = tensors(train(tmp_path / "compiled", around=around))
    plain = tensors(train(tmp_path / "plain"))
    inner = ("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down")
    outputs = inner if around is by_blocks else (*inner, "blocks.0", "blocks.1")
    within = {row for row in plain if row[2].removesuffix(".grad").removesuffix(".out") in outputs}
    assert found == plain - within
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (2 if around is by_blocks else 1)
    assert not torch._dynamo.utils.counters["graph_break"]
    assert proved(tmp_path / "compiled").verdict == "identical"
