"""The rules of a hang: their names and order are part of the answer, and each says what it excuses."""

import inspect

import pytest

from tests.hang.simulate import make
from tracekit.analysis.hang.rules.order import RULES, find_culprits
from tracekit.analysis.hang.rules.rule import Accusation, Found, When
from tracekit.analysis.hang.scene import build_scene
from tracekit.dumps.load import load_dumps

ORDER = [
    ("shared_name", When.ALWAYS),
    ("parted_calls", When.ALWAYS),
    ("mismatched_collective", When.ALWAYS),
    ("uneven_exchange", When.ALWAYS),
    ("mismatched_message", When.ALWAYS),
    ("stalled_device", When.ALWAYS),
    ("stalled_host", When.ALWAYS),
    ("frozen_process", When.NO_CULPRIT),
    ("skipped_collective", When.NO_CULPRIT),
    ("skipped_message", When.NO_CULPRIT),
    ("left_program", When.NO_CULPRIT),
    ("short_of_messages", When.NO_CULPRIT),
    ("lost_calls", When.NO_CULPRIT),
    ("outside_group", When.NOTHING),
    ("unstarted_device", When.NOTHING),
    ("missing_dump", When.NOTHING),
]


def test_names_and_order():
    assert [(rule.name, rule.when) for rule in RULES] == ORDER


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_says_what_it_excuses(rule):
    said = inspect.getdoc(rule.find)
    for part in ("Looks for: ", "Excuses: ", "Returns: "):
        assert part in said
    assert inspect.getmodule(rule.find).__name__.startswith("tracekit.analysis.hang.rules.")


def test_first_accusation_stands():
    first, second = Accusation("mismatched_call", 0, 1), Accusation("host_stalled", 1, 2)
    found = Found({3: first}, doubts=("a",)).and_then(Found({3: second, 4: second}, doubts=("b",)))
    assert found.culprits == {3: first, 4: second}
    assert found.doubts == ("a", "b")


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        (Found(), {When.ALWAYS, When.NO_CULPRIT, When.NOTHING}),
        (Found(doubts=("a",)), {When.ALWAYS, When.NO_CULPRIT}),
        (Found({3: Accusation("host_stalled", 0, 1)}), {When.ALWAYS}),
    ],
)
def test_when_a_rule_is_asked(known, asked):
    assert {when for when in When if when.holds(known)} == asked


def test_rules_leave_the_scene_as_it_is(tmp_path):
    folder = make(3, "wrong_size", "tp").write(tmp_path)
    scene, again = (build_scene(load_dumps([str(folder)])) for _ in range(2))
    assert find_culprits(scene) == find_culprits(scene)
    assert scene.graph == again.graph
    assert [g.frontiers.keys() for g in scene.groups] == [g.frontiers.keys() for g in again.groups]
