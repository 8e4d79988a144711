"""Rules that the list of one rank can break by itself: results must exist before use, and be held before a free."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from reftrain.schedule.actions import ENCODER, ENDS_BACKWARD, PASSES_GRADIENT, Action, Kind, Schedule
from reftrain.schedule.rules import Problem, Rule

Breach = tuple[Rule, str]
Key = tuple[int, int, int]


def check_order_on_rank(schedule: Schedule) -> Iterator[Problem]:
    """Yield the breaches of every list, walked with the results that its rank holds at each slot."""
    for rank, actions in enumerate(schedule.actions):
        walk = _RankWalk()
        for slot, action in enumerate(actions):
            yield from (Problem(rank, slot, rule, text) for rule, text in walk.step(action))
        yield from (Problem(rank, None, rule, text) for rule, text in walk.end(actions))


@dataclass
class _RankWalk:
    """Results that a rank holds: activations by key, weight versions by stage, stashed versions by tag."""

    forward: set[Key] = field(default_factory=set)
    freed: set[Key] = field(default_factory=set)
    passed: set[Key] = field(default_factory=set)
    ended: set[Key] = field(default_factory=set)
    version: dict[tuple[int, int], int] = field(default_factory=dict)
    stash: dict[Key, int] = field(default_factory=dict)
    used: dict[tuple[int, int], int] = field(default_factory=dict)
    forward_version: dict[Key, int] = field(default_factory=dict)

    def step(self, action: Action) -> Iterator[Breach]:
        """Take one action; yield the rules it breaks."""
        key = action.replica, action.stage, action.micro_batch
        if action.kind is Kind.FORWARD:
            self.forward.add(key)
            self.forward_version[key] = self._weights(action)
        elif action.kind in {Kind.RECOMPUTE, Kind.FREE}:
            yield from self._free_or_recompute(action, key)
        elif action.kind in {Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}:
            yield from self._backward(action, key)
        elif action.kind in {Kind.STASH_WEIGHTS, Kind.USE_WEIGHTS, Kind.DROP_WEIGHTS}:
            yield from self._versions(action, key)
        elif action.kind is Kind.OPTIMIZER_STEP:
            self.version[key[:2]] = self.version.get(key[:2], 0) + 1

    def _weights(self, action: Action) -> int:
        key = action.replica, action.stage
        return self.used.pop(key, self.version.get(key, 0))

    def _free_or_recompute(self, action: Action, key: Key) -> Iterator[Breach]:
        if key not in self.forward:
            yield Rule.ORDER, f"{action} comes before {action.of(Kind.FORWARD)}"
        elif key in self.ended:
            rule = Rule.DOUBLE_FREE if action.kind is Kind.FREE else Rule.NOT_HELD
            yield rule, f"{action} comes after the backward has freed the activations"
        elif action.kind is Kind.FREE:
            if key in self.freed:
                yield Rule.DOUBLE_FREE, f"{action} frees what is free already"
            self.freed.add(key)
        elif key not in self.freed:
            yield Rule.NOT_HELD, f"{action} recomputes what is still held"
        elif self._weights(action) != self.forward_version[key]:
            yield Rule.STALE_WEIGHTS, f"{action} uses other weights than {action.of(Kind.FORWARD)}"
        else:
            self.freed.discard(key)

    def _backward(self, action: Action, key: Key) -> Iterator[Breach]:
        if key not in self.forward:
            yield Rule.ORDER, f"{action} comes before {action.of(Kind.FORWARD)}"
            return
        if action.kind is Kind.BACKWARD_WEIGHT and key not in self.passed:
            yield Rule.ORDER, f"{action} comes before {action.of(Kind.BACKWARD_INPUT)}"
        if key in self.freed:
            yield Rule.NOT_HELD, f"{action} needs activations that were freed and not recomputed"
        if self._weights(action) != self.forward_version[key]:
            yield Rule.STALE_WEIGHTS, f"{action} uses other weights than {action.of(Kind.FORWARD)}"
        if action.kind in PASSES_GRADIENT:
            self.passed.add(key)
        if action.kind in ENDS_BACKWARD:
            self.ended.add(key)

    def _versions(self, action: Action, key: Key) -> Iterator[Breach]:
        if action.kind is Kind.STASH_WEIGHTS:
            if key in self.stash:
                yield Rule.TWICE, f"{action} stashes under a tag that is in use"
            self.stash[key] = self.version.get(key[:2], 0)
        elif key not in self.stash:
            drop = action.kind is Kind.DROP_WEIGHTS
            yield (
                Rule.DOUBLE_FREE if drop else Rule.NOT_HELD,
                f"{action}: no weights are stashed under this tag",
            )
        elif action.kind is Kind.USE_WEIGHTS:
            self.used[key[:2]] = self.stash[key]
        else:
            del self.stash[key]

    def end(self, actions: tuple[Action, ...]) -> Iterator[Breach]:
        """Yield the breaches at the end of the list: stashes never dropped, gradients never reduced."""
        for replica, stage, tag in sorted(self.stash):
            yield Rule.NEVER_FREED, f"{Action(Kind.STASH_WEIGHTS, stage, tag, replica)} is never dropped"
        for is_encoder in (False, True):
            yield from _unfinished(tuple(a for a in actions if (a.stage == ENCODER) is is_encoder))


FINISHES = {
    Kind.REDUCE_GRADIENT: "reduced",
    Kind.SYNC_REPLICAS: "summed over the replicas",
    Kind.OPTIMIZER_STEP: "used by an optimiser step",
}


def _unfinished(actions: tuple[Action, ...]) -> Iterator[Breach]:
    """Yield gradients left over: a rank that reduces, sums or steps does so after each stage's last backward."""
    last = {(a.replica, a.stage): (slot, a) for slot, a in enumerate(actions) if a.kind in ENDS_BACKWARD}
    for kind, done in FINISHES.items():
        final = {(a.replica, a.stage): slot for slot, a in enumerate(actions) if a.kind is kind}
        if not final:
            continue
        for key, (slot, action) in sorted(last.items()):
            if final.get(key, -1) < slot:
                yield Rule.NOT_REDUCED, f"the gradient of {action} is never {done}"
    yield from _step_too_early(actions)


def _step_too_early(actions: tuple[Action, ...]) -> Iterator[Breach]:
    """A step or a sum over replicas follows the reduction of everything before it."""
    for kind in (Kind.REDUCE_GRADIENT, Kind.SYNC_REPLICAS):
        if not any(a.kind is kind for a in actions):
            continue
        open_: dict[tuple[int, int], Action] = {}
        for action in actions:
            key = action.replica, action.stage
            if action.kind in ENDS_BACKWARD:
                open_[key] = action
            elif action.kind is kind:
                open_.pop(key, None)
            elif action.kind is Kind.OPTIMIZER_STEP and key in open_:
                yield (
                    Rule.NOT_REDUCED,
                    f"{action} steps before the gradient of {open_[key]} is {FINISHES[kind]}",
                )
