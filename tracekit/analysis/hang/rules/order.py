"""The rules that name culprits, in the order in which they apply, and their results combined.

Groups with disagreeing members come first, then calls that do not match, including calls from other places of the
program: these make every other sign unreliable. Stalled devices come before stalled hosts, since a host may wait for
its own device. Then come jobs in which every rank waits, so that only a different order of calls shows which rank left
one out; and last the reasons that depend on gaps in the dumps.
"""

from typing import Final

from tracekit.analysis.hang.rules.left_program import left_program
from tracekit.analysis.hang.rules.mismatched_collective import mismatched_collectives
from tracekit.analysis.hang.rules.mismatched_sizes import mismatched_messages, unfitting_exchanges
from tracekit.analysis.hang.rules.missing_dump import missing_dump
from tracekit.analysis.hang.rules.not_in_dumps import lost_calls, outside_group
from tracekit.analysis.hang.rules.parted_calls import parted_calls, shared_name
from tracekit.analysis.hang.rules.rule import Found, Rule, When
from tracekit.analysis.hang.rules.skipped_collective import skipped_collectives
from tracekit.analysis.hang.rules.skipped_message import short_of_messages, skipped_message
from tracekit.analysis.hang.rules.stalled_device import stalled_devices, unstarted_devices
from tracekit.analysis.hang.rules.stalled_host import frozen_process, stalled_hosts
from tracekit.analysis.hang.scene import Scene

RULES: Final = (
    Rule("shared_name", When.ALWAYS, shared_name),
    Rule("parted_calls", When.ALWAYS, parted_calls),
    Rule("mismatched_collective", When.ALWAYS, mismatched_collectives),
    Rule("uneven_exchange", When.ALWAYS, unfitting_exchanges),
    Rule("mismatched_message", When.ALWAYS, mismatched_messages),
    Rule("stalled_device", When.ALWAYS, stalled_devices),
    Rule("stalled_host", When.ALWAYS, stalled_hosts),
    Rule("frozen_process", When.NO_CULPRIT, frozen_process),
    Rule("skipped_collective", When.NO_CULPRIT, skipped_collectives),
    Rule("skipped_message", When.NO_CULPRIT, skipped_message),
    Rule("left_program", When.NO_CULPRIT, left_program),
    Rule("short_of_messages", When.NO_CULPRIT, short_of_messages),
    Rule("lost_calls", When.NO_CULPRIT, lost_calls),
    Rule("outside_group", When.NOTHING, outside_group),
    Rule("unstarted_device", When.NOTHING, unstarted_devices),
    Rule("missing_dump", When.NOTHING, missing_dump),
)


def find_culprits(scene: Scene) -> Found:
    """Return the culprits of a job that waits, or the doubts that prevent naming any.

    Every rule sees the findings of the rules before it; if several rules accuse a rank, the first accusation counts.
    """
    known = Found()
    for rule in RULES:
        if rule.when.holds(known):
            known = known.and_then(rule.find(scene, known))
    return known
