"""Culprits of a hang: the ranks from which all waiting starts, each with the call where it failed.

`rules.order` lists the rules; here they are applied one after the other, and their results are combined.
"""

from tracekit.analysis.hang.rules.order import RULES
from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene


def find_culprits(scene: Scene) -> Found:
    """Return the culprits of a job that waits, or the doubts that prevent naming any.

    Every rule sees the findings of the rules before it; if several rules accuse a rank, the first accusation counts.
    """
    known = Found()
    for rule in RULES:
        if rule.when.holds(known):
            known = known.and_then(rule.find(scene, known))
    return known
