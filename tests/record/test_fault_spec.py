import json

import pytest
from click.testing import CliRunner
from tracekit_cli.reftrain_commands.faults import faults

from reftrain.config.fault_kinds import FAULT_KINDS, HANGS
from reftrain.config.fault_spec import FIRST_CALL, fields_of, parse_fault
from reftrain.errors import ConfigError
from reftrain.faults.fault import PLANTS


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


@pytest.mark.parametrize("kind", FAULT_KINDS)
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
        ("slow_compute:rank=1,factor=much", "fault.factor", "not a number"),
        ("slow_compute:rank=1,speed=2", "fault.speed", "it takes rank, factor, steps"),
        ("slow_compute:rank=1,rank=2", "fault.rank", "twice"),
        ("slow_compute:rank", "fault", "name=value"),
        ("slow_compute:rank=1,steps=4:2", "fault.steps", "holds no step"),
        ("slow_compute:rank=1,steps=1:2:3:4", "fault.steps", "not a range"),
        ("slow_compute:rank=1,steps=:", "fault.steps", "not a range"),
    ],
)
def test_errors_name_the_field_and_the_remedy(text, field, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_fault(text, 8)
    assert caught.value.field == field


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_what_is_listed_is_what_can_be_written(kind):
    """Every listed field is taken with its default or each of its words, and nothing else is."""
    listed = fields_of(kind)
    needed = "rank=1," if FAULT_KINDS[kind].needs_rank else ""
    for name, field in listed.items():
        for value in field.choices or (("1",) if name == "rank" else (field.default,)):
            alone = f"{name}={value}" if name == "rank" else f"{needed}{name}={value}"
            parse_fault(f"{kind}:{alone}", 4)
    taken = {"rank", "steps", *FAULT_KINDS[kind].fields, *(FIRST_CALL if kind in HANGS else ())}
    assert set(listed) == taken
    for other in {"axis", "op", "factor", "delay_ms", "every"} - taken:
        with pytest.raises(ConfigError, match=rf"it takes {', '.join(listed)}$"):
            parse_fault(f"{kind}:{needed}{other}=1", 4)
    if listed["rank"].required:
        with pytest.raises(ConfigError, match=r"fault\.rank"):
            parse_fault(kind, 4)
    else:
        parse_fault(kind, 4)


def test_the_command_lists_every_field_of_every_kind():
    text = CliRunner().invoke(faults, []).output
    document = json.loads(CliRunner().invoke(faults, ["--json", "-"]).output)
    rows = {row["name"]: row for row in document["faults"]}
    assert set(rows) >= set(FAULT_KINDS)
    for kind, what in ((kind.name, kind.behaviour) for kind in FAULT_KINDS.values()):
        assert rows[kind]["what"] == what
        assert list(rows[kind]["fields"]) == list(fields_of(kind))
        told = text[text.index(f"{kind}: {what}\n") :].splitlines()[1 : 1 + len(fields_of(kind))]
        for line, (name, field) in zip(told, fields_of(kind).items(), strict=True):
            assert line.startswith(f"    {name}: {field.meaning}")
            assert ("must be given" in line) == field.required
            assert all(word in line for word in field.choices)
    assert rows["crash"]["fields"]["axis"]["choices"] == ["tp", "cp", "pp", "dp", "ep"]
    assert rows["crash"]["fields"]["op"]["choices"] == [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "all_to_all",
        "send",
        "recv",
    ]


def test_every_kind_has_a_hook_that_plants_it():
    import reftrain.faults.registry  # noqa: F401 - the hook classes enter themselves

    assert set(PLANTS) == {name for name, kind in FAULT_KINDS.items() if not kind.simulated}
