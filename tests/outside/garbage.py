"""Garbage collection that is forced in a rank: a thread collects a large heap again and again, and holds the lock."""

import gc
import time
from dataclasses import dataclass
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Collector:
    """Called in a process: from then on all its generations are collected each period."""

    objects: int
    period_s: float

    def __call__(self) -> None:
        """Make `objects` lists, which live as long as the process, and start to collect."""
        heap: list[Any] = [[[]] for _ in range(self.objects)]
        Thread(target=self._collect, args=(heap,), daemon=True).start()

    def _collect(self, heap: list[Any]) -> None:
        while heap:
            time.sleep(self.period_s)
            gc.collect()
