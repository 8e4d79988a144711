"""The base of all planted faults: whether this rank and this step are meant."""

from reftrain.config.fault_spec import FaultSpec
from reftrain.rank.hooks import Hooks, RunContext, StepMetrics


class Fault(Hooks):
    """Base of all faults: knows whether it strikes this rank in the current step."""

    def __init__(self, spec: FaultSpec) -> None:
        self.spec = spec
        self.here = False
        self.active = False
        self.emulated = False

    def strikes(self, context: RunContext) -> bool:
        """Whether this rank is meant."""
        return context.rank == self.spec.rank

    def setup(self, context: RunContext) -> None:
        """Find out whether this rank is meant."""
        self.here = self.strikes(context)
        self.emulated = context.config.compute == "emulated"

    def step_begin(self, step: int) -> None:
        """Find out whether the step is meant."""
        self.active = self.here and self.spec.active(step)

    def step_end(self, metrics: StepMetrics) -> None:
        """Rest until the next step."""
        del metrics
        self.active = False
