"""Engines that are refused, and what the refusals advise."""

import pytest

from reftrain.errors import ConfigError
from reftrain.infer.engine import Workload
from reftrain.infer.report import answers_of
from reftrain.infer.serve import check_serving
from tests.advice.of_config import configured
from tests.advice.register import calls, case

FEW = Workload(requests=4, prompt=6, generate=2, slots=2)
TOKENS = ((1,) * FEW.length,) * FEW.requests


def served(settings: str, **changes: object) -> None:
    """Check an engine that answers four requests."""
    from dataclasses import replace

    check_serving(configured(settings), replace(FEW, **changes))


calls("an engine has tensor ranks and replicas alone", served, "mesh.cp=2", "mesh.cp=1 mesh.tp=2")
calls("an engine serves plain decoders", served, "model.experts=4", "model.experts=0")


@case("mesh: {} ranks are too many for one machine")
def _(_folder, _patch):
    many = "mesh.dp=4096 data.batch_size=4096"
    return lambda: served(many, requests=4096), lambda: served("mesh.dp=4")


@case("--requests: {}; give a multiple of {}")
def _(_folder, _patch):
    return lambda: served("mesh.dp=2", requests=5), lambda: served("mesh.dp=2", requests=6)


@case("--whole: needs the tokens of finished requests")
def _(_folder, _patch):
    return lambda: served("", whole=True), lambda: served("", whole=True, forced=TOKENS)


@case("give the --requests, --prompt and --generate of that run")
def _(_folder, _patch):
    return lambda: served("", forced=TOKENS, requests=8), lambda: served("", forced=TOKENS)


@case("--forced: token {} is beyond the vocabulary")
def _(_folder, _patch):
    beyond = ((10**6,) * FEW.length,) * FEW.requests
    return lambda: served("", forced=beyond), lambda: served("", forced=TOKENS)


@case("--forced: {} holds no answers of an engine")
def _(folder, _patch):
    kept = folder / "run" / "infer"
    kept.mkdir(parents=True)
    (kept / "rank0.json").write_text('{"rank": 0, "requests": [{"number": 0, "tokens": [3, 4]}]}')
    (folder / "cut" / "infer").mkdir(parents=True)
    (folder / "cut" / "infer" / "rank0.json").write_text('{"rank": 0}')

    def refused() -> None:
        with pytest.raises(ConfigError, match="holds no answers of an engine"):
            answers_of(folder / "cut")
        answers_of(folder)  # a folder of something else

    def followed() -> None:
        assert answers_of(folder / "run") == ((3, 4),)

    return refused, followed
