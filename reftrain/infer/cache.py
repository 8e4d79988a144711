"""Keys and values of all tokens that sequences have so far, by attention: written at positions, read from the start.

A sequence owns a slot; a slot that a request leaves is written over by the next one from position 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class KeyValueCache:
    """Room for `slots` sequences of up to `length` tokens.

    `begin` says which slots and positions the next forward writes; `stale` leaves keys and values of that position
    unwritten, as a wrong engine would.
    """

    slots: int
    length: int
    stale: int = -1
    _held: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _rows: list[int] = field(default_factory=list)
    _positions: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))

    def begin(self, rows: Sequence[int], positions: torch.Tensor) -> None:
        """Write to `rows` at `positions`, (rows, new tokens), from now on."""
        self._rows, self._positions = list(rows), positions

    def extend(
        self, name: str, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep keys and values of the new tokens, (B, H, S, D), and return those up to the last position."""
        if name not in self._held:
            shape = (self.slots, keys.shape[1], self.length, keys.shape[3])
            self._held[name] = keys.new_zeros(shape), values.new_zeros(shape)
        end = int(self._positions.max()) + 1
        rows = torch.tensor(self._rows, device=keys.device)
        out = []
        for held, new in zip(self._held[name], (keys, values), strict=True):
            for row, at, of_row in zip(self._rows, self._positions, new, strict=True):
                kept = at != self.stale
                held[row][:, at[kept]] = of_row[:, kept]
            out.append(held[rows, :, :end])
        return out[0], out[1]

    @property
    def bytes(self) -> int:
        """Bytes of the whole cache on this rank."""
        return sum(t.numel() * t.element_size() for pair in self._held.values() for t in pair)
