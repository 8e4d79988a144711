"""Schedules of several pipelines over the same ranks: GEMS and Chimera, derived from the text of the papers.

The stages of a replica lie on the ranks in one direction or the other, so every rank holds 2f stages and every stage
has 2f owners. The owners' gradients are summed once a step (`replica_sync`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.schedule.spec import ScheduleSpec

Slotted = tuple[int, int, Action]
"""(slot of equal length, order within the slot, action)."""


def gems(spec: ScheduleSpec) -> Schedule:
    """Two replicas take micro-batches in turn, each following the other's backward (GEMS, Jain et al. 2020).

    A rank never holds more than one micro-batch: it ends one's backward before the next one's forward.
    """
    spec.one_stage_a_rank()
    ranks, m = spec.ranks, spec.micro_batches
    if ranks < 2:
        raise spec.refuse("mesh.pp", "needs two directions", "give 2 stages or more")
    down, up = tuple(range(ranks)), tuple(reversed(range(ranks)))
    actions = tuple(
        tuple(
            Action(kind, (rank, ranks - 1 - rank)[mb % 2], mb, mb % 2)
            for mb in range(m)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
        )
        for rank in range(ranks)
    )
    return Schedule(spec.name, m, 1, down, actions, others=(up,))


def chimera(spec: ScheduleSpec) -> Schedule:
    """Merge f down and f up pipelines without conflict, in basic units of p micro-batches (Chimera).

    In slots of equal length, micro-batch j of a pipeline runs forward on stage s in slot s + 2j and back in
    slot 2p-1-s + 2j (section 3.1, figure 3; for 2f pipelines section 3.6). `concatenation` joins units when
    m > p (section 3.5): `direct` as they are; `doubling` and `halving` in units of 2p with forwards that run in
    pairs and backwards that run one by one, with recomputation (doubling) or without (halving).
    """
    spec.one_stage_a_rank()
    ranks, m = spec.ranks, spec.micro_batches
    if ranks % 2:
        raise spec.refuse(
            "mesh.pp", f"cannot merge two directions over {ranks} stages", "give an even number"
        )
    pairs, odd = divmod(spec.pipelines, 2)
    if odd or pairs < 1 or (ranks // 2) % pairs:
        problem = f"cannot lay {spec.pipelines} pipelines over {ranks} stages"
        choices = ", ".join(str(2 * f) for f in range(1, ranks // 2 + 1) if ranks // 2 % f == 0)
        raise spec.refuse("pipeline.pipelines", problem, f"choose among {choices}")
    placements = tuple(_placement(ranks, pairs, q) for q in range(2 * pairs))
    slotted: list[list[Slotted]] = [[] for _ in range(ranks)]
    for unit in _units(ranks, m, spec):
        for action_slot in unit.actions(ranks, spec.pipelines):
            action = action_slot[2]
            slotted[placements[action.replica][action.stage]].append(action_slot)
    actions = [[a for _, _, a in sorted(rank)] for rank in slotted]
    if spec.concatenation == "doubling":
        actions = [_recompute_pairs(rank, doubled=_doubled(ranks, m, spec)) for rank in actions]
    return Schedule(
        spec.name, m, 1, placements[0], tuple(tuple(rank) for rank in actions), others=placements[1:]
    )


def _placement(ranks: int, pairs: int, replica: int) -> tuple[int, ...]:
    """Down pipeline i starts on rank i·p/f; each up pipeline is the reverse of its down pipeline."""
    start = replica // 2 * (ranks // pairs)
    down = tuple((start + stage) % ranks for stage in range(ranks))
    return down if replica % 2 == 0 else tuple(reversed(down))


@dataclass(frozen=True)
class _Unit:
    """A basic scheduling unit: micro-batches `first` … `first + size - 1`, beginning in slot `begin`."""

    first: int
    size: int
    begin: int
    doubled: bool

    def actions(self, ranks: int, pipelines: int) -> Iterator[Slotted]:
        """Actions of all pipelines in their slots; each pipeline takes consecutive micro-batches."""
        micro_batch = self.first
        for replica in range(pipelines):
            share = self.size // pipelines + (replica < self.size % pipelines)
            for j in range(share):
                pair, within = divmod(j, 2) if self.doubled else (j, 0)
                for stage in range(ranks):
                    forward = Action(Kind.FORWARD, stage, micro_batch, replica)
                    yield self.begin + stage + 2 * pair, within, forward
                    yield self.begin + 2 * ranks - 1 - stage + 2 * j, 0, forward.of(Kind.BACKWARD)
                micro_batch += 1


def _units(ranks: int, m: int, spec: ScheduleSpec) -> Iterator[_Unit]:
    """Units until all micro-batches are placed, the last one smaller where p does not divide m.

    A unit of p takes 2p slots until the next may begin, one of 2p with paired forwards 3p.
    """
    first = begin = 0
    while first < m:
        doubled = spec.concatenation != "direct" and m - first >= 2 * ranks
        size = 2 * ranks if doubled else min(ranks, m - first)
        yield _Unit(first, size, begin, doubled)
        first += size
        begin += (3 if doubled else 2) * ranks


def _doubled(ranks: int, m: int, spec: ScheduleSpec) -> set[int]:
    units = _units(ranks, m, spec)
    return {mb for unit in units if unit.doubled for mb in range(unit.first, unit.first + unit.size)}


def _recompute_pairs(actions: Sequence[Action], *, doubled: set[int]) -> list[Action]:
    """Free the activations of a paired micro-batch after its forward, and recompute them right before its backward."""
    out: list[Action] = []
    for action in actions:
        if action.micro_batch not in doubled:
            out.append(action)
        elif action.kind is Kind.FORWARD:
            out += [action, action.of(Kind.FREE)]
        else:
            out += [action.of(Kind.RECOMPUTE), action]
    return out
