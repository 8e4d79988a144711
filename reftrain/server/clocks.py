"""The rule of bounded staleness: which weights a worker gets, and when its gradients count.

A clock is a step of a worker. The gradients of one clock are added in the order of the workers once the last one has
come, and give the next version of the weights. A worker begins clock c with version c - s or a newer one, where s is
the bound: with 0 that is synchronous SGD, and with more the workers that are ahead go on with older weights.

Source: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", section 3.
There each update counts at once; here those of a clock count together, so that no sum depends on the order of arrival.
"""

from dataclasses import dataclass, field


@dataclass
class Clocks:
    """Progress of the workers under a bound; `version` counts the clocks with gradients from all of them."""

    workers: int
    staleness: int
    version: int = 0
    arrived: dict[int, set[int]] = field(default_factory=dict)

    def may_begin(self, clock: int) -> bool:
        """Return whether a worker may begin this clock with the present version."""
        return self.version >= clock - self.staleness

    def arrive(self, clock: int, worker: int) -> bool:
        """Note that a worker's gradient of a clock has come; return whether the version grows by it.

        Clocks complete in their order, because no worker sends a later one first.
        """
        of_clock = self.arrived.setdefault(clock, set())
        of_clock.add(worker)
        if len(of_clock) < self.workers:
            return False
        del self.arrived[clock]
        self.version += 1
        return True
