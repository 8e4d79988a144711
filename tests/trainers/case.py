"""What a case of the benchmark declares: a run, its baseline, what is planted, which answers are acceptable."""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Question = Literal["model", "pair", "both"]
TWO: tuple[Question, ...] = ("model", "both")
THREE: tuple[Question, ...] = ("model", "pair", "both")
CLEAR = frozenset({"identical", "drift", "rounding", "signed_zero", "reporting_only"})
BLAME = frozenset({"bug", "precision_policy"})
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """A trainer, the number of its ranks, and its options."""

    train: Callable[..., None]
    ranks: int
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder; equal runs share one."""
        module = self.train.__module__.rsplit(".", 1)[-1]
        digest = hashlib.sha256(repr(self.options).encode()).hexdigest()[:8]
        return f"{module}_{self.train.__name__}_{self.ranks}_{digest}"

    def with_options(self, **options: object) -> "Run":
        """The same run with some options replaced."""
        return Run(self.train, self.ranks, tuple(sorted({**dict(self.options), **options}.items())))


def run(train: Callable[..., None], ranks: int, **options: object) -> Run:
    """A run of a trainer on so many ranks."""
    return Run(train, ranks, tuple(sorted(options.items())))


def model_argument(build: Callable[[], object]) -> str:
    """FILE.py:FUNCTION, relative to the repository, as `--model` takes it."""
    path = Path(inspect.getfile(build)).relative_to(ROOT)
    return f"{path}:{build.__name__}"


@dataclass(frozen=True)
class Case:
    """One trainer and the questions that its author asks.

    `planted` is empty where the trainer is healthy. The rest are regular expressions: the head of a blame must
    contain `where`, the head of an `undecided` counts as right if it contains `reason`, an all-clear for a broken
    trainer is not a false one if the answer contains `word`, and no answer may contain `never`, which is untrue.
    """

    name: str
    run: Run
    build: Callable[[], object]
    baseline: Run | None = None
    planted: str = ""
    source: str = ""
    where: str = ""
    reason: str = ""
    word: str = ""
    never: str = ""
    also: frozenset[str] = frozenset()
    questions: tuple[Question, ...] = TWO

    @property
    def asked(self) -> tuple[Question, ...]:
        """The questions that the case can be asked."""
        return tuple(q for q in self.questions if self.baseline is not None or q == "model")

    def command(self, question: Question, folder: Path) -> list[str]:
        """The arguments of `numerics` for this question; `folder` holds the runs."""
        arguments = ["compare", "--parallel", str(folder / self.run.name)]
        if question != "model" and self.baseline is not None:
            arguments += ["--baseline", str(folder / self.baseline.name)]
        if question != "pair":
            arguments += ["--model", model_argument(self.build)]
        return [*arguments, "--quiet"]
