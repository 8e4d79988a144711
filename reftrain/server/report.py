"""What `reftrain server` answers: simulated rows, and the trained job where it was trained, as text and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from reftrain.documents import ServerDocument
from reftrain.server.simulated import Row
from reftrain.server.training import Trained
from reftrain.thresholds import SERVER_PACE, SERVER_WAIT


@dataclass(frozen=True)
class Answer:
    """Rows by staleness, and of a trained job what it did in how many seconds, and whether its replay has its bits."""

    workers: int
    steps: int
    rows: Sequence[Row]
    trained: Trained | None = None
    seconds: float = 0.0
    repeated: bool = False
    shown: int = field(default=4)

    @property
    def pace(self) -> int | None:
        """The rank of the worker that the others wait for, None where all wait alike."""
        if self.trained is None or self.workers == 1:
            return None
        waits = self.trained.waited_s
        first, second = sorted(range(self.workers), key=lambda worker: waits[worker])[:2]
        apart = waits[first] < SERVER_PACE * waits[second] and waits[second] > SERVER_WAIT * self.seconds
        return first + 1 if apart else None


def text(answer: Answer) -> str:
    """Return the answer as text."""
    lines = [f"{answer.workers} workers, {answer.steps} steps", ""]
    lines.append(f"{'':16}{'ms a step':>12}{'waiting':>10}{'stale by':>10}")
    lines += [
        f"{row.name:16}{1e3 * row.step_s:12.1f}{100 * row.waiting:9.1f}%{row.stale:10.2f}"
        for row in answer.rows
    ]
    if answer.trained is not None:
        lines += ["", *_trained(answer, answer.trained)]
    return "\n".join(lines) + "\n"


def _trained(answer: Answer, trained: Trained) -> list[str]:
    """Return lines about the trained job."""
    rows = list(enumerate(zip(trained.losses, trained.versions, strict=True)))
    few = rows if len(rows) <= 2 * answer.shown else [*rows[: answer.shown], *rows[-answer.shown :]]
    lines = ["step      loss  weights of the workers"]
    lines += [f"{step:4d}  {loss:8.5f}  {' '.join(map(str, versions))}" for step, (loss, versions) in few]
    waits = ", ".join(f"{seconds:.2f}" for seconds in trained.waited_s)
    lines.append(f"waited {waits} s of {answer.seconds:.2f} s")
    if answer.pace is not None:
        lines.append(f"worker of rank {answer.pace} sets the pace: the others wait for it")
    same = "repeats every bit" if answer.repeated else "does not repeat it"
    return [*lines, f"one process with the same versions {same}"]


def document(answer: Answer) -> ServerDocument:
    """Return the answer as `reftrain.server/1`."""
    trained = answer.trained
    return {
        "schema": "reftrain.server/1",
        "workers": answer.workers,
        "steps": answer.steps,
        "rows": [
            {
                "name": row.name,
                "staleness": row.staleness,
                "step_s": row.step_s,
                "waiting": row.waiting,
                "stale": row.stale,
            }
            for row in answer.rows
        ],
        "trained": []
        if trained is None
        else [
            {"step": step, "loss": loss, "versions": versions}
            for step, (loss, versions) in enumerate(zip(trained.losses, trained.versions, strict=True))
        ],
        "waited_s": [] if trained is None else trained.waited_s,
        "pace": answer.pace,
    }
