"""What an answer is worth."""

from dataclasses import dataclass

RIGHT, OPEN, CLEAR, INNOCENT, ERROR = "right", "open", "false none", "innocent accused", "error"
WORDS = (RIGHT, OPEN, CLEAR, INNOCENT, ERROR)


@dataclass
class Outcome:
    """A case, its truth, and tracekit's answer."""

    seed: int
    shape: str
    cause: str
    world: int
    culprits: tuple[int, ...]
    kinds: tuple[str, ...]
    verdict: str = ""
    named: tuple[int, ...] = ()
    named_kinds: tuple[str, ...] = ()
    candidates: tuple[int, ...] = ()
    reason: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def result(self) -> str:
        """What the answer is worth; a job that runs or a dead link has no culprit."""
        if self.error:
            return ERROR
        if set(self.named) - set(self.culprits):
            return INNOCENT
        if self.culprits:
            return RIGHT if self.named else CLEAR if self.verdict == "none" else OPEN
        if self.cause == "busy":
            return RIGHT if self.verdict == "none" else OPEN
        return CLEAR if self.verdict == "none" else RIGHT

    @property
    def narrowed(self) -> bool | None:
        """Whether a culprit is among the candidates of an open answer; nothing where there are none."""
        if self.result != OPEN or not self.culprits or not self.candidates:
            return None
        return bool(set(self.candidates) & set(self.culprits))

    @property
    def kind_right(self) -> bool | None:
        """Whether a right answer gives the right kind; nothing where nobody is named."""
        return set(self.named_kinds) <= set(self.kinds) if self.result == RIGHT and self.named else None

    def row(self) -> dict[str, object]:
        """The outcome as JSON."""
        return {**vars(self), "result": self.result, "kind_right": self.kind_right}
