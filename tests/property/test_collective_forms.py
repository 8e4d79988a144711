"""Collectives that name no group, as torch wrote them up to 2.3: the same culprit, or an open answer."""

from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import prod

import pytest

from tests.accuracy.score import judge
from tests.generator import Case, generate
from tests.generator.forms import FORMS
from tests.generator.mesh import Mesh
from tests.marks import quick_first, quick_nth
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import MeshError
from tracekit.ingest import load

OLD = [name for name, form in FORMS.items() if form.keys is not None]
SHAPES = ((2, 1, 1, 4), (2, 2, 1, 2), (2, 1, 2, 2), (1, 2, 2, 2))
FLAT = [
    (shape, seed, kind)
    for shape in SHAPES[:2]
    for seed, kind in ((3, "slow_compute"), (1, "healthy"), (2, "launch_bound"))
]
PIPED = [(shape, seed, kind) for shape in SHAPES[2:] for seed, kind in ((3, "slow_compute"), (1, "healthy"))]


@cache
def job(shape, seed: int, kind: str) -> Case:
    """A small job with all files whole; `shape` is tp, cp, pp, dp."""
    mesh = Mesh(("tp", "cp", "pp", "dp"), dict(zip(("tp", "cp", "pp", "dp"), shape, strict=True)))
    assert prod(shape) == mesh.world
    return generate(seed, kind=kind, mesh=mesh, steps=4, missing=set(), truncated={})


def answered(case: Case, form: str, folder, *, flag: bool):
    """The answer to the case written in `form`, with or without its mesh."""
    replace(case, capture=replace(case.capture, form=form)).write(folder)
    return analyse(load([str(folder)]), dict(case.truth.sizes) if flag else None)


@pytest.mark.slow
@pytest.mark.parametrize("flag", [False, True], ids=["told by ends", "mesh given"])
@pytest.mark.parametrize("form", quick_nth(2, OLD))
@pytest.mark.parametrize(("shape", "seed", "kind"), quick_first(1, FLAT))
def test_streams_tell_groups_without_pipeline(tmp_path, shape, seed, kind, form, flag):
    case = job(shape, seed, kind)
    answer = answered(case, form, tmp_path, flag=flag)
    assert judge(case.truth, answer) == "right"
    assert answer.coverage.matched > 0.9
    assert sorted(answer.mesh.sizes.values()) == sorted(shape)


@pytest.mark.parametrize("flag", [False, True], ids=["told by ends", "mesh given"])
@pytest.mark.parametrize("form", quick_nth(2, OLD))
@pytest.mark.parametrize(("shape", "seed", "kind"), quick_first(1, PIPED))
@pytest.mark.quick(1)
def test_a_pipeline_without_peers_blames_nobody_else(tmp_path, shape, seed, kind, form, flag):
    case = job(shape, seed, kind)
    with suppress(MeshError):  # nothing may tell which axis is the pipeline
        assert judge(case.truth, answered(case, form, tmp_path, flag=flag)) in ("right", "inconclusive")
