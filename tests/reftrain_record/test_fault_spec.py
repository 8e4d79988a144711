import pytest

from reftrain.errors import ConfigError
from reftrain.faults.spec import KINDS, parse_fault


def test_all_fields():
    fault = parse_fault("slow_compute:rank=5,factor=1.25,steps=2:9:3", 8)
    assert (fault.kind, fault.rank, fault.values) == ("slow_compute", 5, {"factor": 1.25})
    assert [step for step in range(12) if fault.active(step)] == [2, 5, 8]
    assert fault.to_json() == {"kind": "slow_compute", "rank": 5, "steps": "2:9:3", "factor": 1.25}


@pytest.mark.parametrize(
    ("steps", "active"), [("3", [3]), ("2:", [2, 3, 4, 5]), (":2", [0, 1]), ("1:4", [1, 2, 3])]
)
def test_steps(steps, active):
    fault = parse_fault(f"crash:rank=0,steps={steps}", 1)
    assert [step for step in range(6) if fault.active(step)] == active


def test_defaults_fill_what_is_not_given():
    assert parse_fault("slow_compute:rank=1", 8).values == {"factor": 1.5}
    assert parse_fault("long_stage", 8).rank is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_written_and_read_back(kind):
    fault = parse_fault(f"{kind}:rank=2", 4)
    fields = fault.to_json()
    text = ",".join(f"{name}={value}" for name, value in fields.items() if name != "kind")
    assert parse_fault(f"{kind}:{text}", 4) == fault


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("slow_compte:rank=1", "fault", "did you mean slow_compute"),
        ("", "fault", "choose one of"),
        ("slow_compute", "fault.rank", "add rank="),
        ("slow_compute:rank=8", "fault.rank", "0…7"),
        ("slow_compute:rank=-1", "fault.rank", "0…7"),
        ("slow_compute:rank=1,factor=1", "fault.factor", "above 1"),
        ("slow_compute:rank=1,factor=nan", "fault.factor", "above 1"),
        ("slow_compute:rank=1,factor=much", "fault.factor", "no number"),
        ("slow_compute:rank=1,speed=2", "fault.speed", "it takes rank, factor, steps"),
        ("slow_compute:rank=1,rank=2", "fault.rank", "twice"),
        ("slow_compute:rank", "fault", "name=value"),
        ("slow_compute:rank=1,steps=4:2", "fault.steps", "holds no step"),
        ("slow_compute:rank=1,steps=1:2:3:4", "fault.steps", "no range"),
        ("slow_compute:rank=1,steps=:", "fault.steps", "no range"),
    ],
)
def test_errors_name_the_field_and_the_remedy(text, field, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_fault(text, 8)
    assert caught.value.field == field
