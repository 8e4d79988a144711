"""What is asked of a generator: the scheme's sizes, and the refusals that several schemes share."""

from dataclasses import dataclass

from reftrain.errors import ScheduleError

Concatenation = str
"""One of `CONCATENATIONS`."""
CONCATENATIONS = ("direct", "doubling", "halving")


@dataclass(frozen=True)
class Request:
    """Sizes of a schedule.

    `ranks` is p; `virtual` v, the virtual stages of a rank; `micro_batches` m, of one step; `consecutive` k;
    `pipelines` 2f and `concatenation` are Chimera's; `steps` counts the optimiser steps that an asynchronous
    schedule lays out without a flush (a synchronous table is one step).
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
        """Build the error that names the scheme and the size it cannot take."""
        return ScheduleError(field, f"{self.name} {problem}", remedy)

    def one_stage_a_rank(self) -> None:
        """Raise `ScheduleError` when virtual stages are asked of a scheme that has none."""
        if self.virtual != 1:
            raise self.refuse(
                "pipeline.virtual_stages", "has one stage a rank", "give 1, or schedule = flexible"
            )
