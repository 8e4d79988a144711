"""Ranks with a process that stopped running while their peers went on waiting, by the last sign of life in each dump.

A stopped process (SIGSTOP, a frozen container, swap) has made its last call like its peers, so that no call is lacking.
Recorders of a process note when they last ran; NCCL's does not, and a dump without that time says nothing here.
"""

from statistics import median_high

from tracekit.analysis.hang.program_order import CallId, first_in_program
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.thresholds.hang import FROZEN_LEAST_S, FROZEN_SHARE
from tracekit.units import NS_PER_S


def frozen_process(scene: Scene, _known: Found) -> Found:
    """Return the ranks with a recorder that stopped soon after their last call, while the others' ran on for long.

    Looks for: ranks that lived on after their last call for a small share of the time that most others did; a launcher
    ends some later.
    Excuses: all ranks if a dump does not hold the time at which its recorder last ran, or clocks contradict, or if half
    of the ranks fit.
    Returns: `host_stalled`, at the call in which the rank and its peers wait.
    """
    beats = {rank: dump.heartbeat for rank, dump in scene.dumps.items()}
    known = all(beats[rank] and dump.last_created for rank, dump in scene.dumps.items())
    if len(beats) < len(scene.world) or not known:
        return Found()
    lived = {rank: beats[rank] - scene.dumps[rank].last_created for rank in beats}
    usual = median_high(lived.values())
    frozen = {rank for rank, ns in lived.items() if ns < FROZEN_SHARE * usual}
    others = lived.keys() - frozen
    if not frozen or len(frozen) >= len(others):
        return Found()
    ended = min(beats[rank] for rank in others) - max(beats[rank] for rank in frozen)
    apart = min(lived[rank] for rank in others) - max(lived[rank] for rank in frozen)
    if min(ended, apart) < FROZEN_LEAST_S * NS_PER_S:
        return Found()
    culprits: dict[int, Accusation] = {}
    for rank in sorted(frozen):
        silent = (min(beats[other] for other in others) - beats[rank]) / NS_PER_S
        how = (
            f"its process last ran {silent:.0f} s before that of any other rank: it was stopped, or it ended"
        )
        if (accusation := _at_first_wait(scene, rank, how)) is None:
            return Found()
        culprits[rank] = accusation
    return Found(culprits)


def _at_first_wait(scene: Scene, rank: int, how: str) -> Accusation | None:
    """Return the accusation at the first call that a rank waits in, or that others wait for; None without one."""
    pending = scene.graph.pending
    calls = [CallId(pending[at].group, pending[at].seq) for at in scene.graph.waits.get(rank, ())]
    calls = calls or [CallId(c.group, c.seq) for c in pending if rank in {*c.behind, *c.unknown}]
    if calls:
        call = first_in_program(scene, calls)
        return Accusation("host_stalled", call.group, call.seq, how=how)
    dump = scene.dumps[rank]
    op = min(dump.p2p, key=lambda op: (op.send, op.created), default=None)  # Gloo's sends wait for none
    if op is None:
        return None
    tail = dump.groups[op.group]
    own = [n for n in scene.memberships[rank] if scene.groups[n].frontiers[rank].tail is tail]
    return Accusation("host_stalled", own[0], op.seq, call=op.call, how=how) if own else None
