"""What a rank suffers now: its fault, and what happens without one."""

from tests.shapes.setting import Setting


class Afflicted:
    """A rank in a step."""

    def __init__(self, setting: Setting, number: int) -> None:
        self.setting, self.number = setting, number
        self.step_number = -1
        self.pauses = self.paused = 0

    def factor(self, what: str) -> float:
        """By how much this rank's work is slower now."""
        fault, around = self.setting.fault, self.setting.background
        by = 1.0 if around is None else around.factor(what, self.number, self.step_number)
        if fault is None or self.setting.clean:
            return by
        return by * fault.factor(what, self.number, self.step_number)

    def stall_us(self, what: str) -> float:
        """How long the fault stalls this rank's host now; a clean job asks too, for it draws the same chances."""
        fault = self.setting.fault
        return fault.stall_us(what, self.number, self.step_number) if fault else 0.0

    def always_us(self, what: str) -> float:
        """How long this rank's host stalls without a fault."""
        around = self.setting.background
        return around.stall_us(what, self.number, self.step_number) if around else 0.0

    def turn(self) -> bool:
        """Whether this is the one of a step's pauses, as many as in the step before, at which the rank pauses."""
        self.paused += 1
        chosen = hash((self.setting.seed, self.number, self.step_number)) % max(1, self.pauses)
        return self.paused == chosen + 1

    def ended(self) -> None:
        """A step is over."""
        self.pauses, self.paused = self.paused, 0
