"""A report as the room holds it, and what is made of its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RIGHT, OPEN, MISLEADING, WRONG = "right", "open, with a remedy", "misleading", "wrong"


@dataclass(frozen=True)
class Answer:
    """What a command printed: its text, its JSON (empty where it refused), and its exit code."""

    text: str
    document: dict[str, object]
    code: int

    @property
    def verdict(self) -> str:
        """The verdict, or `refused`."""
        return str(self.document.get("verdict", "refused" if self.code else "answered"))

    def ranks(self, key: str) -> tuple[int, ...]:
        """The ranks of a list of findings (`culprits`, `suspects`, `candidates`), in order."""
        listed = self.document.get(key) or []
        assert isinstance(listed, list)
        return tuple(sorted({row["rank"] if isinstance(row, dict) else row for row in listed}))

    def says(self, *words: str) -> bool:
        """Whether text or JSON contains one of these, in lower case."""
        whole = f"{self.text} {self.document}".lower()
        return any(word in whole for word in words)


@dataclass(frozen=True)
class Report:
    """One report: where it stands, what its author would give, ask and expect.

    `judge` maps the answer to RIGHT, OPEN, MISLEADING or WRONG; `make` fills a folder; `command` is what is asked,
    with `{}` for the folder.
    """

    source: str
    kind: str
    input: str
    expected: str
    make: Callable[[Path], None]
    command: tuple[str, ...]
    judge: Callable[[Answer], str]
    quick: bool = False

    @property
    def name(self) -> str:
        """What `--only` takes: the project and the number."""
        return self.source.rsplit("/", maxsplit=1)[-1].replace("#", "-").lower()


def named(key: str, ranks: tuple[int, ...], *words: str) -> Callable[[Answer], str]:
    """Right where exactly these ranks are named (with one of the words); open where they are among the candidates."""

    def judge(answer: Answer) -> str:
        found = answer.ranks(key)
        if found == ranks:
            return RIGHT if not words or answer.says(*words) else MISLEADING
        if found:
            return WRONG
        if set(ranks) <= set(answer.ranks("candidates")):
            return OPEN
        return MISLEADING if answer.verdict in {"none", "healthy"} else OPEN

    return judge


def accuses_none(key: str, *words: str) -> Callable[[Answer], str]:
    """Right where no rank is named and one of the words is said; wrong where a rank is named."""

    def judge(answer: Answer) -> str:
        if answer.ranks(key):
            return WRONG
        return RIGHT if not words or answer.says(*words) else MISLEADING

    return judge
