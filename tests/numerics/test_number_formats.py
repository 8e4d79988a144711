"""Which replays in other formats are worth making for a first divergence."""

from types import SimpleNamespace

import pytest

from numerics.comparison.explanations.number_formats import _that_can_show


def found(tensor, kind, phase, dtype):
    row = {"tensor": tensor, "kind": kind, "dtype": dtype}
    run = SimpleNamespace(name=lambda column, _: row[column])
    return run, SimpleNamespace(rows=(0,), divergence=SimpleNamespace(phase=phase))


@pytest.mark.parametrize(
    ("tensor", "kind", "phase", "dtype", "variants"),
    [
        ("rope", "input", "forward", "float32", ("rope=bf16", "compute=bf16")),
        ("layers.0.attention.qkv.keys", "activation", "forward", "bfloat16", ("rope=bf16",)),
        ("layers.0.attention.wo.in", "activation", "forward", "bfloat16", ()),
        ("layers.0.attention.wo.in", "activation", "forward", "float32", ("compute=bf16",)),
        ("layers.0.out.grad", "activation_grad", "backward", "float32", ()),
        ("w.grad", "param_grad_local", "backward", "float32", ("accumulate=bf16", "reduce=bf16")),
        ("w.grad", "param_grad", "reduce", "float32", ("reduce=bf16", "accumulate=bf16")),
    ],
)
def test_only_formats_that_can_show_here(tensor, kind, phase, dtype, variants):
    assert _that_can_show(*found(tensor, kind, phase, dtype)) == variants
