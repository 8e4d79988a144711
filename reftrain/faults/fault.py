"""The base of all planted faults: decides whether a fault strikes this rank in this step."""

from typing import Any, Final

from reftrain.config.fault_spec import FaultSpec
from reftrain.rank.events import StepMetrics
from reftrain.rank.hooks import Hooks, RunContext

PLANTS: Final[dict[str, type["Fault"]]] = {}
"""Hook class of each kind of `config.fault_kinds`; a subclass enters itself: `class Crash(Hang, kind="crash")`."""


class Fault(Hooks):
    """Base of all faults: knows whether it strikes this rank in the current step."""

    def __init_subclass__(cls, *, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            PLANTS[kind] = cls

    def __init__(self, spec: FaultSpec) -> None:
        self.spec = spec
        self.here = False
        self.active = False
        self.emulated = False

    def strikes(self, context: RunContext) -> bool:
        """Return whether the fault strikes this rank."""
        return context.rank == self.spec.rank

    def setup(self, context: RunContext) -> None:
        """Find out whether the fault strikes this rank."""
        self.here = self.strikes(context)
        self.emulated = context.config.compute == "emulated"

    def step_begin(self, step: int) -> None:
        """Find out whether the fault strikes this step."""
        self.active = self.here and self.spec.active(step)

    def step_end(self, metrics: StepMetrics) -> None:
        """Rest until the next step."""
        del metrics
        self.active = False
