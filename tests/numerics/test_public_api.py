"""The public API: which names there are, how they are called, what they raise, and that they come lazily."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import numerics
from tracekit.errors import InputError, TracekitError

NAMES = {
    "Box": "(offsets, sizes)",
    "CaptureError": None,
    "Cell": "(module, step, phase, tensors, differ, unexplained, rel)",
    "CompareFinding": "(verdict, proof, reason, parallel, baseline, replay, first_divergence, explanation, tensors, "
    "largest_differences, invariants, plan, could_not_have_seen, next, notes, cells, "
    "not_checked)",
    "Counts": "(compared, identical, explained, unexplained, only_one, rows_replayed, rows_different)",
    "Divergence": "(step, phase, micro_batch, module, tensor, collective, axis, ranks, evidence)",
    "Options": "(replay, make_replay, prove)",
    "Placed": "(local, shape, boxes, replica, partial)",
    "Proof": None,
    "Recorder": "(run_dir, rank, world_size, coords, *, level, names, source, config, first)",
    "TensorDifference": "(tensor, step, max_ulp, rel, cosine, ratio)",
    "Verdict": None,
    "Watcher": "(recorder, model, optimizer, dp, micro_batches, batch, place, *, collectives)",
    "compare": "(parallel, baseline, options)",
    "watch": "(model, optimizer, *, dp, micro_batches, batch, place, out, level, names, coords, config, collectives)",
}


def parameters(name):
    """Parameter names of a public callable, keyword-only ones behind a star."""
    found = list(inspect.signature(getattr(numerics, name)).parameters.values())
    names = [p.name for p in found]
    only = [n for n, p in enumerate(found) if p.kind is p.KEYWORD_ONLY]
    if only:
        names.insert(only[0], "*")
    return f"({', '.join(names)})"


def test_public_names_are_frozen():
    assert numerics.__all__ == sorted(NAMES) == dir(numerics)


@pytest.mark.parametrize("name", [name for name, given in NAMES.items() if given])
def test_signatures_are_frozen(name):
    assert parameters(name) == NAMES[name]
    assert inspect.getdoc(getattr(numerics, name))


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        numerics.absent  # noqa: B018 - the access itself is refused


def test_errors_share_one_root():
    assert issubclass(numerics.CaptureError, TracekitError)
    with pytest.raises(InputError, match="no such folder"):
        numerics.compare(Path("absent"), None)


def test_importing_numerics_loads_no_torch():
    code = "import sys, numerics; assert not {'torch', 'pyarrow', 'numpy'} & set(sys.modules); numerics.Divergence"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)
