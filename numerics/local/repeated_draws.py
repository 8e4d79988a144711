"""Random numbers that repeat: a later step drops what an earlier one dropped, or begins with its generator's state.

Within a step they may repeat by design (a forward computed again from the same inputs). In another step they do where
the trainer went back: it restored the weights with the generator, and the steps after it follow as they did.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from numerics.local.draws.chance import agreement, certain
from numerics.local.draws.dropout_masks import Dropped
from numerics.local.draws.dropout_parts import Alike, alike_parts
from numerics.local.forced_pass import Check
from numerics.local.judgement import Judged, Standing
from numerics.local.local_check import Doubt, LocalCheck
from numerics.local.places.place_pass import PlacePass
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.records.restored_steps import Digest
from numerics.local.step_digests import inputs_digest, random_digest, random_states, weights_digest
from numerics.schema import RANDOM
from numerics.thresholds.local import CHANCE_SHOWN
from numerics.thresholds.report import STEPS_IN_SENTENCE

_STATE: Final = f"{RANDOM}cpu"
_SETTLED: Final = (
    "let each micro-batch draw on from where the one before it ended, or capture two steps, and compare again"
)

Masks = Mapping[int, Dropped]
"""What one call of a dropout layer dropped at one place, by step."""


@dataclass(frozen=True)
class _Repeat:
    """A tensor that holds in step `second` the random numbers of step `first`, at a place, and that in words."""

    tensor: str
    module: str
    place: Place
    first: int
    second: int
    words: str


@dataclass
class RepeatedDraws:
    """What each step's forwards drew, added step by step; then what of it repeats."""

    masks: dict[tuple[str, int, Place], dict[int, Dropped]] = field(default_factory=dict)
    states: dict[Place, dict[int, Digest]] = field(default_factory=dict)
    drew: set[tuple[Place, int]] = field(default_factory=set)
    weights: dict[int, Digest] = field(default_factory=dict)
    inputs: dict[tuple[int, Place], Digest] = field(default_factory=dict)
    parts: Alike | None = None
    random: set[str] = field(default_factory=set)
    shared: Alike | None = None

    def asks(self, state: RecordedStep, place: Place) -> bool:
        """Return whether it matters what a place draws: at first, and where it begins with another forward's state."""
        again = random_digest(state, place) in self.states.get(place, {}).values()
        return again or not self.inputs or (not self.shared and _same_state(state, place) is not None)

    def add(self, state: RecordedStep, place: Place, found: PlacePass) -> None:
        """Add what a place dropped and drew."""
        step, dropped = state.step, found.dropped
        self.random |= found.random
        other = _same_state(state, place) if found.draws and not self.shared else None
        if other is not None:
            words = (
                f"data-parallel ranks {other[0]} and {place[0]} draw the same random numbers (step {step}, micro-batch "
                f"{place[1]}), each for its own sequences, where one process would draw others for each"
            )
            self.shared = Alike(words, step, place[1], (), axis="dp")
        if step not in self.weights:
            self.weights[step] = weights_digest(state)
        self.inputs[step, place] = inputs_digest(state, place)
        for one in dropped:
            self.masks.setdefault((one.tensor, one.call, place), {})[step] = one
            self.parts = self.parts or alike_parts(state, place, one)
        generators = random_digest(state, place)
        if generators:
            self.states.setdefault(place, {})[step] = generators
        if found.draws:
            self.drew.add((place, step))

    def checks(self) -> list[LocalCheck]:
        """Return a check of what first repeats in another step, beyond doubt; none where nothing does."""
        found = [one for key, held in self.masks.items() if (one := self._masks_again(key, held))]
        found = found or [
            one for place, held in self.states.items() if (one := self._state_again(place, held))
        ]
        if not found:
            return []
        first = min(found, key=lambda one: one.second)
        alike = [one for one in found if (one.tensor, one.second) == (first.tensor, first.second)]
        ranks = {rank for one in alike for rank in self._ranks(one.second, one.place)}
        judged = Judged(Standing.BEYOND, relation=first.words)
        check = Check(first.tensor, first.module, "forward", judged)
        return [LocalCheck(first.second, None, check, ranks=tuple(sorted(ranks)))]

    def _masks_again(self, key: tuple[str, int, Place], held: Masks) -> _Repeat | None:
        """Return where a call of a dropout layer drops in a step what it dropped in an earlier one."""
        pairs = len(held) * (len(held) - 1) // 2
        pair = self._first_pair(held, lambda a, b: same_elements(held[a], held[b], pairs))
        if pair is None:
            return None
        one, steps = (
            held[pair[1]],
            [b for b in held if b > pair[0] and same_elements(held[pair[0]], held[b], pairs)],
        )
        words = (
            f"in {_listed(steps)} it drops the very elements that it dropped in step {pair[0]}, "
            f"which chance does {_chance_in_words(chance_of(held[pair[0]], one))}: the random numbers do not move on"
        )
        return _Repeat(one.tensor, one.module, key[2], *pair, words)

    def _state_again(self, place: Place, held: Mapping[int, Digest]) -> _Repeat | None:
        """Return where a forward begins with the generator's state of an earlier step and draws from it."""
        pair = self._first_pair(held, lambda a, b: held[a] == held[b] and (place, b) in self.drew)
        if pair is None:
            return None
        steps = [b for b in held if b > pair[0] and held[b] == held[pair[0]]]
        words = (
            f"the forwards of {_listed(steps)} begin with the state that step {pair[0]} began with, and draw from it: "
            "the random numbers do not move on"
        )
        return _Repeat(_STATE, "", place, *pair, words)

    def _first_pair(
        self, held: Mapping[int, object], alike: Callable[[int, int], bool]
    ) -> tuple[int, int] | None:
        """Return the first two steps that are `alike` though the trainer did not go back from one to the other."""
        return next(
            (
                (a, b)
                for b in sorted(held)
                for a in sorted(held)
                if a < b and alike(a, b) and not self._went_back(a, b, held, alike)
            ),
            None,
        )

    def _went_back(
        self, a: int, b: int, held: Mapping[int, object], alike: Callable[[int, int], bool]
    ) -> bool:
        """Return whether step b starts from the weights of step a, or as many steps after one that does, all alike.

        Steps that follow each other with equal weights were not updated, which shows no way back.
        """
        if self._same_weights(a, b):
            return True
        while b - a > 1 and a - 1 in held and b - 1 in held and alike(a - 1, b - 1):
            a, b = a - 1, b - 1
            if self._same_weights(a, b) and not self._same_weights(b - 1, b):
                return True
        return False

    def _same_weights(self, a: int, b: int) -> bool:
        return bool(self.weights.get(a)) and self.weights.get(a) == self.weights.get(b)

    def doubts(self) -> list[Doubt]:
        """Return that micro-batches of one step draw alike from unlike inputs; the first such pair."""
        for one, a, b, step in self._pairs_of_places():
            if a[0] == b[0] and self.inputs[step, a] != self.inputs[step, b]:
                what = f"in step {step}, micro-batches {a[1]} and {b[1]} of data-parallel rank {a[0]}"
                return [Doubt(f"{what} drop the same elements of {one.tensor}, from unlike inputs", _SETTLED)]
        return []

    def alike(self) -> list[Alike]:
        """Return ranks that drop or draw alike for sequences, or for parts of a tensor, of their own."""
        pairs = (p for p in self._pairs_of_places() if p[1][0] != p[2][0])
        one, a, b, step = next(pairs, (None, (0, 0), (0, 0), 0))
        shared = self.shared
        if one is not None:
            words = (
                f"data-parallel ranks {a[0]} and {b[0]} drop the same elements of {one.tensor} (step {step}, "
                f"micro-batch {a[1]}), where one process would drop others for each"
            )
            ranks = tuple(sorted(self._ranks(step, a) | self._ranks(step, b)))
            shared = Alike(words, step, a[1], ranks, one, "dp")
        return [found for found in (shared, self.parts) if found is not None]

    def _ranks(self, step: int, place: Place) -> set[int]:
        """Return the ranks of a place, by what they were called with."""
        return {entry[0] for entry in self.inputs[step, place]}

    def remarks(self) -> list[str]:
        """Return in words where masks are not the recorded generator's."""
        every = [one for held in self.masks.values() for one in held.values()]
        other = sum(not one.replayed for one in every)
        said = (
            f"dropout: {other} of {len(every)} masks are not what the recorded generator draws (a fork, a tracker, "
            "another device), and were read from the layers' outputs"
        )
        return [said] if other else []

    def _pairs_of_places(self) -> Iterator[tuple[Dropped, Place, Place, int]]:
        """Yield calls that drop alike in one step, of one rank's micro-batches or of one micro-batch's ranks."""
        by_call: dict[tuple[int, str, int], dict[Place, Dropped]] = {}
        for (tensor, call, place), held in self.masks.items():
            for step, one in held.items():
                by_call.setdefault((step, tensor, call), {})[place] = one
        for (step, _, _), places in sorted(by_call.items()):
            pairs = len(places) * (len(places) - 1) // 2
            for a, b in combinations(sorted(places), 2):
                near = a[0] == b[0] or a[1] == b[1]
                if near and same_elements(places[a], places[b], pairs):
                    yield places[a], a, b, step


def _same_state(state: RecordedStep, place: Place) -> Place | None:
    """Return an earlier data-parallel rank's place if its forward of this micro-batch begins with the same state."""
    own = random_states(state, place)
    others = (p for p in state.recorded.places(state.step) if p < place and p[1] == place[1])
    return next((p for p in others if own and random_states(state, p) == own), None)


def same_elements(one: Dropped, other: Dropped, pairs: int) -> bool:
    """Return whether two calls drop the same elements, where no chance does so in any of so many pairs."""
    count = min(len(one.kept), len(other.kept))
    nonzero = one.nonzero[:count] & other.nonzero[:count]
    if not bool((one.kept[:count] == other.kept[:count])[nonzero].all()):
        return False
    return certain(int(nonzero.sum()), one.chance, pairs)


def chance_of(one: Dropped, other: Dropped) -> float:
    """Return the decimal logarithm of the chance that two independent draws drop the same informative elements."""
    count = min(len(one.kept), len(other.kept))
    return int((one.nonzero[:count] & other.nonzero[:count]).sum()) * agreement(one.chance)


def _chance_in_words(logarithm: float) -> str:
    size = f"1 in 10^{min(int(-logarithm), CHANCE_SHOWN)}"
    return f"less than {size}" if -logarithm > CHANCE_SHOWN else size


def _listed(steps: list[int]) -> str:
    """Return steps in words, the first few of them."""
    shown = ", ".join(str(step) for step in sorted(steps)[:STEPS_IN_SENTENCE])
    more = " and more" if len(steps) > STEPS_IN_SENTENCE else ""
    return f"step{'s' * (len(steps) > 1)} {shown}{more}"
