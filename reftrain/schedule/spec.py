"""The sizes and options from which a scheme makes a table, and the refusals that several schemes share."""

from dataclasses import dataclass

from reftrain.errors import ScheduleError

CONCATENATIONS = ("direct", "doubling", "halving")
"""How Chimera joins its basic units when there are more micro-batches than ranks (Chimera, section 3.5)."""


@dataclass(frozen=True)
class ScheduleSpec:
    """Name, sizes and options of a schedule.

    `ranks` is p, the pipeline ranks; `virtual` is v, the virtual stages of a rank; `micro_batches` is m, the
    micro-batches of one step; `consecutive` is k, the micro-batches that run consecutively on a virtual stage.
    `pipelines` (2f) and `concatenation` (one of `CONCATENATIONS`) are Chimera's. `steps` is the number of
    optimiser steps that an asynchronous schedule lays out without a flush; a synchronous table is one step.
    """

    name: str
    ranks: int
    micro_batches: int
    virtual: int = 1
    consecutive: int = 1
    pipelines: int = 2
    concatenation: str = "direct"
    steps: int = 1

    def refuse(self, field: str, problem: str, remedy: str) -> ScheduleError:
        """Return the error that names the scheme and the size it cannot take."""
        return ScheduleError(field, f"{self.name} {problem}", remedy)

    def one_stage_a_rank(self) -> None:
        """Raise `ScheduleError` when virtual stages are asked of a scheme that has none."""
        if self.virtual != 1:
            raise self.refuse(
                "pipeline.virtual_stages", "has one stage a rank", "give 1, or schedule = flexible"
            )
