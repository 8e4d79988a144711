"""Culprits of a hang: the ranks from which all waiting starts, each with the call where it failed.

The rules stand in `rules.order`; here they are asked one after the other, and their results are put together.
"""

from tracekit.analysis.hang.rules.order import RULES
from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene


def find_culprits(scene: Scene) -> Found:
    """Give the culprits of a job that waits, or the doubts why there are none.

    Every rule sees what the rules before it found; of a rank that several accuse the first accusation stands.
    """
    known = Found()
    for rule in RULES:
        if rule.when.holds(known):
            known = known.and_then(rule.find(scene, known))
    return known
