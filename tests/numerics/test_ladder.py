"""Slope or plateau: pairs of captures whose distance falls with the format, or does not."""

import json
import math

import pytest
import torch
from click import UsageError
from click.testing import CliRunner
from tracekit_cli.numerics import numerics as program

from numerics.precision.ladder import ladder
from numerics.record.recorder import Recorder
from numerics.report.ladder import ladder_document, ladder_text
from reftrain.config.file import load
from tests.marks import quick_first
from tests.reftrain.workers import whole_run
from tracekit.errors import InputError

UNITS = {"bf16": 2.0**-8, "fp32": 2.0**-24, "fp64": 2.0**-53}
NAMES = ("first.weight.grad", "second.weight.grad", "third.weight.grad")


def run(folder, policy, change=lambda name, value, unit: value, model="a"):
    """One run: three gradients in FP64, changed as told."""
    config = {"model": {"name": model}, "dtype_policy": policy, "numerics": {"policy": policy}}
    with Recorder(folder, 0, 1, config=config) as recorder:
        for number, name in enumerate(NAMES):
            value = torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
            recorder.record(
                name,
                change(name, value, UNITS[policy]),
                step=0,
                phase="reduce",
                kind="param_grad",
                module=name,
            )
    return folder


def drift(name, value, unit):
    noise = torch.randn(value.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(name)))
    return value + 3 * unit * noise


def one_percent_in_second(name, value, unit):
    return drift(name, value, unit) * (1.01 if name.startswith("second") else 1)


def pairs(tmp_path, change, baseline=lambda name, value, unit: value, policies=("bf16", "fp32", "fp64")):
    return [(run(tmp_path / f"a_{p}", p, change), run(tmp_path / f"b_{p}", p, baseline)) for p in policies]


def test_rounding_falls_on_every_rung(tmp_path):
    finding = ladder(pairs(tmp_path, drift))
    assert finding.verdict == "drift"
    assert finding.policies == ("bf16", "fp32", "fp64")
    assert [r.shape for r in finding.rungs] == ["slope"] * 3
    assert all(r.slope == pytest.approx(1, abs=0.02) for r in finding.rungs)
    assert "IS ROUNDING" in ladder_text(finding).upper()


def test_a_bug_stays(tmp_path):
    finding = ladder(reversed(pairs(tmp_path, one_percent_in_second)))
    assert finding.verdict == "bug"
    assert finding.first is not None
    assert finding.first.tensor == "second.weight.grad"
    assert finding.first.distances[-1] == pytest.approx(0.01, rel=0.5)
    assert [r.shape for r in finding.rungs] == ["slope", "plateau", "slope"]


@pytest.mark.parametrize(("size", "policies"), [(1e-9, ("fp32", "fp64")), (1e-3, ("bf16", "fp32"))])
def test_a_bug_below_coarse_rounding_shows_on_fine_rungs(tmp_path, size, policies):
    def tiny(name, value, unit):
        return drift(name, value, unit) * (1 + size if name.startswith("third") else 1)

    finding = ladder(pairs(tmp_path, tiny, policies=policies))
    assert finding.verdict == "bug"
    assert [r.tensor for r in finding.rungs if r.shape == "plateau"] == ["third.weight.grad"]


def test_what_is_zero_but_for_rounding_tells_nothing(tmp_path):
    """A gradient that is zero in exact arithmetic differs by its whole size in every format."""

    def zero(seed):
        def change(name, value, unit):
            noise = torch.randn(
                value.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
            )
            return unit * noise if name.startswith("first") else drift(name, value, unit)

        return change

    finding = ladder(pairs(tmp_path, zero(7), zero(8)))
    assert finding.verdict == "drift"
    assert finding.rungs[0].shape == "vanishing"


def test_equal_pairs(tmp_path):
    finding = ladder(pairs(tmp_path, lambda name, value, unit: value))
    assert finding.verdict == "identical"
    assert finding.count("equal") == 3


def test_numbers_that_are_none_are_not_hidden(tmp_path):
    def broken(name, value, unit):
        return value * math.nan if name.startswith("first") else drift(name, value, unit)

    finding = ladder(pairs(tmp_path, broken))
    assert finding.rungs[0].shape in {"unknown", "plateau"}


def test_what_no_ladder_can_be_made_of(tmp_path):
    made = pairs(tmp_path, drift)
    with pytest.raises(InputError, match="one policy is not enough"):
        ladder(made[:1])
    with pytest.raises(InputError, match="two pairs have the same policy"):
        ladder([made[0], made[0], made[1]])
    with pytest.raises(InputError, match="a pair has one policy"):
        ladder([(made[0][0], made[1][1]), made[2]])
    other = run(tmp_path / "other", "fp32", model="b")
    with pytest.raises(InputError, match="cannot be compared"):
        ladder([(made[1][0], other), made[2]])
    with pytest.raises(InputError, match="no such folder"):
        ladder([(tmp_path / "absent", other), made[2]])


def test_the_command(tmp_path):
    flags = [str(part) for pair in pairs(tmp_path, one_percent_in_second) for part in ("--pair", *pair)]
    answer = CliRunner().invoke(program, ["ladder", *flags, "--json", "-"], standalone_mode=False)
    assert answer.return_value == 1
    document = json.loads(answer.output)
    assert document == json.loads(json.dumps(ladder_document(ladder(pairs_of(tmp_path)))))
    assert document["schema"] == "numerics.ladder/1"
    assert document["first"]["tensor"] == "second.weight.grad"


@pytest.mark.parametrize(
    ("fault", "verdict", "tensor"),
    quick_first(0, [("P52:factor=1.01", "bug", "layers.0.attention_norm.out"), (None, "drift", None)]),
)
def test_the_trainer_climbs_by_itself(ranks, tmp_path, fault, verdict, tensor):
    """A BF16 pair is repeated in FP32 and FP64 by reftrain, its planted bug with it."""
    for name, tables in {"a": {"mesh": {"tp": 2}}, "b": {}}.items():
        faults = [fault] if fault and name == "a" else []
        (tmp_path / name).mkdir()
        config = load(
            None,
            {
                **tables,
                "model": {"layers": 1},
                "data": {"batch_size": 2, "seq_len": 32},
                "run": {"steps": 1, "out": str(tmp_path / name)},
                "evidence": {"capture": "digest", "faults": faults},
            },
        )
        ranks.run(whole_run, config.mesh.world_size, config)
    arguments = [
        "ladder",
        "--parallel",
        str(tmp_path / "a"),
        "--baseline",
        str(tmp_path / "b"),
        "--json",
        "-",
        "--quiet",
    ]
    document = json.loads(CliRunner().invoke(program, arguments, standalone_mode=False).stdout)
    assert document["policies"] == ["bf16", "fp32", "fp64"]
    assert document["verdict"] == verdict, document["reason"]
    assert (document["first"] or {}).get("tensor") == tensor


def test_what_the_command_is_given_must_fit():
    for arguments in (
        ["ladder"],
        ["ladder", "--parallel", "x"],
        ["ladder", "--pair", "a", "b", "--out", "c"],
    ):
        with pytest.raises(UsageError):
            CliRunner().invoke(program, arguments, standalone_mode=False, catch_exceptions=False)


def pairs_of(tmp_path):
    return [(tmp_path / f"a_{p}", tmp_path / f"b_{p}") for p in UNITS]
