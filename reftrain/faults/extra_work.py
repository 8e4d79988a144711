"""Makes one rank's computation longer by real work: the fault behind `slow_compute`.

The rank's own computing time between two marks is measured, and (factor - 1) times as much real matrix
multiplication is added to it. Work is counted in the thread's CPU time where one thread computes, so that a
busy machine does not multiply the fault.
"""

import math
import time

import torch

from reftrain.thresholds import EXTRA_WORK_MEMORY, EXTRA_WORK_ROWS, EXTRA_WORK_SIDE


class ExtraWork:
    """Adds (factor - 1) times the measured computing time of this rank, each time as one matrix product.

    `begin` and `end` enclose own computation.
    """

    def __init__(self, factor: float, device: torch.device | None = None) -> None:
        self.factor = factor
        self._device = device or torch.device("cpu")
        one_thread = self._device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = time.thread_time if one_thread else time.perf_counter
        self._left = torch.full((EXTRA_WORK_ROWS, EXTRA_WORK_SIDE), 1.0, device=self._device)
        self._right = torch.full(
            (EXTRA_WORK_SIDE, EXTRA_WORK_SIDE), 1.0 / EXTRA_WORK_SIDE, device=self._device
        )
        self._out = torch.empty_like(self._left)
        self._wall_s = 0.0
        self._owed_s = 0.0
        self._mark: float | None = None
        self._row_s = 0.0
        for _ in range(3):  # the first products pay for starting up
            self._row_s = self._multiply(EXTRA_WORK_SIDE) / EXTRA_WORK_SIDE

    def begin(self) -> None:
        """Mark the start of own computation."""
        self._sync()
        self._mark = self._clock()

    def end(self, most_s: float = math.inf) -> float:
        """Work on for (factor - 1) times what was computed since `begin`, of `most_s` seconds at most.

        Returns the seconds computed since `begin`; without a `begin` it does nothing and returns 0.
        """
        if self._mark is None:
            return 0.0
        self._sync()
        computed, self._mark = self._clock() - self._mark, None
        self.work((self.factor - 1.0) * min(computed, most_s))
        return computed

    def work(self, seconds: float) -> None:
        """Compute for `seconds` of the clock in use; the next call makes up for too much or too little work."""
        start = time.perf_counter()
        self._owed_s += seconds
        while (rows := int(self._owed_s / self._row_s)) > 0:
            rows = min(rows, EXTRA_WORK_ROWS)
            took = self._multiply(rows)
            self._owed_s -= took
            self._row_s += EXTRA_WORK_MEMORY * (took / rows - self._row_s)
            if rows < EXTRA_WORK_ROWS:
                break
        self._wall_s += time.perf_counter() - start

    def take_wall_ms(self) -> float:
        """Return the wall-clock milliseconds that the added work took since the last call."""
        taken, self._wall_s = self._wall_s * 1e3, 0.0
        return taken

    def _multiply(self, rows: int) -> float:
        """Seconds that a product of `rows` rows took."""
        before = self._clock()
        with torch.no_grad():
            torch.mm(self._left[:rows], self._right, out=self._out[:rows])
        self._sync()
        return max(self._clock() - before, 1e-9)

    def _sync(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
