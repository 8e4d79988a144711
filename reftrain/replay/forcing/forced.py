"""The forced replay: what the run recorded replaces each value that was computed, before the computation goes on.

Each row then shows what follows from the run's own values just before it, so that nothing drifts in between. A first
pass computes in the run's formats. Where rows differ, a second one computes their exact values and the most that
rounding may move them (`numerics.local.bounds.bounded`), into the captures OUT/exact and OUT/error.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from torch import Tensor

from numerics.local.bounds import rules  # noqa: F401 - rules register themselves
from numerics.local.bounds.bounded import Bounded, known, unit
from numerics.local.forced_pass import replace
from numerics.record.recorder import Recorder
from numerics.schema import Level
from reftrain.config.run import RunConfig
from reftrain.layout.capture_rows import RankRows
from reftrain.layout.grid import Seat
from reftrain.layout.placement import is_repeated
from reftrain.replay.capture_writer import CaptureWriter
from reftrain.replay.forcing.recorded_values import ForcedRecorder, RecordedRank

OTHER_PATHS: Final = 2
"""Roundings more that a gradient may have: another formula gathers it on so many more paths."""

EXACT: Final = "exact"
ERROR: Final = "error"


class ForcedWriter(CaptureWriter):
    """Records what is computed from recorded values, and hands the recorded ones on.

    With `bounds` the computation is one on bounded tensors.
    """

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        level: Level,
        names: Sequence[str],
        recorded: Mapping[int, RecordedRank],
        *,
        bounds: bool = False,
    ) -> None:
        self.recorded, self.bounds = recorded, bounds
        super().__init__(config, out, level, names)

    def _recorder(self, seat: Seat, out: Path) -> Recorder:
        rank, size = self.grid.rank(seat), self.config.mesh.world_size
        coords = {"tp": seat.tp, "cp": seat.cp, "pp": seat.pp, "dp": seat.dp}
        folder = out / EXACT if self.bounds else out
        made = ForcedRecorder(folder, rank, size, coords, level=self.level, names=self.names)
        errors = None
        if self.bounds:
            errors = Recorder(out / ERROR, rank, size, coords, level=self.level, names=self.names)
        made.follow(self.recorded[rank], errors)
        return made

    def _next(self, rank: RankRows, tensor: Tensor) -> Tensor:
        recorder = rank.recorder
        return recorder.onward(tensor) if isinstance(recorder, ForcedRecorder) else tensor

    def value(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Record what was computed; hand the recorded value on, and its recorded gradient back."""
        if is_repeated(name, self.config):
            return list(tensors)
        return [self._replaced(rank, name, t) for rank, t in zip(self._here(), tensors, strict=True)]

    def _replaced(self, rank: RankRows, name: str, tensor: Tensor) -> Tensor:
        number = self.now.micro_batch
        value = self._activation(rank, name, tensor, number)
        back = partial(self._gradient, rank, name, number=number)
        return replace(tensor, value, back)

    def _gradient(self, rank: RankRows, name: str, grad: Tensor, number: int) -> Tensor:
        return super()._gradient(rank, name, _by_other_paths(grad), number)

    def weights(self, weights: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Record each micro-batch's gradients of the leaves, and let the recorded ones be accumulated."""
        out = []
        for rank, leaves in zip(self._here(), weights, strict=True):
            own = dict(leaves)
            if self.bounds:
                own = {
                    name: known(leaf.detach()).requires_grad_(leaf.requires_grad)
                    for name, leaf in leaves.items()
                }
            for name, leaf in own.items():
                if not leaf.requires_grad:
                    continue
                leaf.register_hook(self._on_leaf(rank, name))  # type: ignore[no-untyped-call] # torch's is untyped
            out.append(own)
        return out

    def _on_leaf(self, rank: RankRows, name: str) -> Callable[[Tensor], Tensor]:
        number = self.now.micro_batch

        def seen(grad: Tensor) -> Tensor:
            rank.local_gradient(name, grad, number)
            return self._next(rank, grad)

        return seen

    def shards(
        self, kind: str, suffix: str, tensors: Mapping[Seat, Mapping[str, Tensor]]
    ) -> dict[Seat, dict[str, Tensor]]:
        """Record the shards of every rank, and write the recorded values into them."""
        out = super().shards(kind, suffix, tensors)
        for seat, named in tensors.items():
            for name, tensor in named.items():
                if not isinstance(tensor, Bounded):
                    tensor.detach().copy_(out[seat][name])
                    out[seat][name] = tensor
        return out


def _by_other_paths(grad: Tensor) -> Tensor:
    """Leave room for a gradient that is added up from more parts."""
    if not isinstance(grad, Bounded):
        return grad
    return Bounded(grad.value, grad.error + OTHER_PATHS * unit(grad.dtype) * grad.value.abs(), grad.dtype)
