"""`python -m tests.paired.ablation`: what each rule of `slowrank` earns, on the jobs that were looked at.

A job is read once. Each rule that says something about it is then switched off, and the job is answered again. The
table shows for each rule in how many jobs it said something, in how many the answer differs without it, and whether
that answer is better or worse. A rule that changes nothing anywhere has no case here.

`python -m tests.paired.variation` does the same for thresholds.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.paired.ask import in_short
from tests.paired.jobs import LOOKED_AT, SUITES, Truth
from tests.paired.judge import WEIGHT, judged, price_error
from tests.paired.matched import Matched, kept, matched_of
from tests.paired.other_evidence import KINDS
from tracekit.analysis.slowrank import analyse as room
from tracekit.analysis.slowrank.decision.decide import CHALLENGES, concluded
from tracekit.analysis.slowrank.decision.decide import RULES as DECISION
from tracekit.analysis.slowrank.decision.gaps import GAPS
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.mechanisms import refined
from tracekit.case.case import build
from tracekit.errors import TracekitError
from tracekit.report.slowrank_json import slowrank_document

BROKEN: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, TracekitError)
"""What code may raise that relies on a rule."""
PRICED_APART: Final = 0.5  # points by which a price must differ to be worse or better
ROOM: Final = "tracekit.analysis.slowrank."


@dataclass(frozen=True)
class Rule:
    """A function of `slowrank`, or of a room that is named whole, and what it returns where it has nothing to say.

    That is a value, one of its arguments (their place), or what `like` makes of its result.
    """

    place: str
    nothing: Any = None
    argument: int | None = None
    like: Callable[[Any], Any] | None = None

    @property
    def name(self) -> str:
        """The function's name."""
        return self.place.partition(":")[2]

    def function(self) -> Callable[..., Any]:
        """The function itself."""
        module, name = self.place.split(":")
        found: Callable[..., Any] = getattr(
            import_module(module if module.startswith("tracekit.") else ROOM + module), name
        )
        return found

    def neutral(self, arguments: tuple[Any, ...], found: Any) -> Any:
        """What the function returns where it has nothing to say, instead of what it `found`."""
        if self.like is not None:
            return self.like(found)
        return self.nothing if self.argument is None else arguments[self.argument]

    def says(self, arguments: tuple[Any, ...], found: Any) -> bool:
        """Whether what it `found` differs from nothing."""
        neutral = self.neutral(arguments, found)
        if self.like is not None:
            return not _equal(neutral, found)
        if isinstance(found, np.ndarray):
            return not _equal(neutral, found)
        return found is not neutral and (not isinstance(neutral, _PLAIN) or found != neutral)


_PLAIN: Final = (bool, float, frozenset, tuple, list, set, dict)
"""Kinds of values that are compared by what they hold; a case or an answer is the same object if nothing was said."""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))


def _place(function: Callable[..., Any]) -> str:
    """Where a function of the decision stands, as `Rule` names it."""
    return f"{function.__module__.removeprefix(ROOM)}:{function.__name__}"


RULES: Final = (
    *(Rule(_place(rule)) for rule in DECISION[:-1]),
    *(Rule(_place(gap), nothing=[]) for gap in GAPS),
    *(Rule(_place(challenge), argument=1) for challenge in CHALLENGES),
    *(Rule(place) for place in (
        "unrecorded.unrecorded:with_typical_unseen", "hypotheses.long_stage:long_stage",
        "hypotheses.long_stage:_computing_longer", "hypotheses.slow_link:slow_link",
        "hypotheses.moving_stalls:moving_stalls", "hypotheses.moving_stalls:moving_work",
        "gaps.evidence_gaps:in_the_only_step", "gaps.evidence_gaps:undecided", "gaps.recurrence:in_one_step",
        "decision.no_culprit:nearly_costly", "gaps.lone_transfers:lopsided", "answers.harmless:_beside_communication",
        "answers.harmless:_by_slack",
        "gaps.evidence_gaps:faint_ranks", "hypotheses.long_stage:faint_stage", "decision.no_culprit:faint_node",
        "answers.imbalance_answers:node_of",
    )),
    *(Rule(place, nothing=False) for place in (
        "hypotheses.data_imbalance:data_explains", "gaps.evidence_gaps:tokens_may_explain",
        "hypotheses.shared_documents:only_attention", "hypotheses.shared_documents:dealt_to_its_replica",
        "hypotheses.shared_documents:_documents_show", "hypotheses.excess_parts:may_be_pace",
        "gaps.evidence_gaps:compared_little", "gaps.evidence_gaps:unread", "tracekit.expected.excess:recurs_beside",
        "gaps.recurrence:others_prove_health",
        "suspects:in_gaps", "suspects:launches_slowly", "suspects:longest_takes_turns",
        "tracekit.expected.nodes:whole_boundaries", "tracekit.expected.like_transfers:beyond_inferred_group",
        "answers.hidden_rank:dealt_to_experts",
        "answers.imbalance_answers:runs_more",
    )),
    Rule("suspects:stands", nothing=True),
    *(Rule(place, nothing=0.0) for place in (
        "hypotheses.data_imbalance:uneven_data", "hypotheses.data_imbalance:uneven_tokens",
        "decision.no_culprit:usually_slow_ns", "hypotheses.slow_link:_thread_doubt",
        "suspects:_no_fault", "hypotheses.suspect_work:compute_spared",
        "answers.culprit_answers:_not_saved",
    )),
    Rule("tracekit.case.cures:with_hosts", argument=1),
    *(Rule(place, nothing=()) for place in (
        "tracekit.expected.nodes:on_slow_node", "answers.compared_steps:odd_steps",
    )),
    Rule("gaps.lone_transfers:lone_transfers", nothing=[]),
    Rule("hypotheses.dealt_work:_namesakes", nothing={}),
    Rule("tracekit.expected.nodes:lone_links", nothing=set()),
    Rule("tracekit.expected.excess:throttled", nothing=frozenset()),
    Rule("hypotheses.link_cure:carried_ns", nothing=(0.0, 0.0)),
    *(Rule(place, argument=at) for place, at in (
        ("answers.culprit_answers:launched_late", 1), ("decision.gaps:dearer_in_doubt", 1),
        ("hypotheses.long_stage:_loading", 2), ("hypotheses.link_cure:_with_mates", 1),
        ("hypotheses.link_cure:_cured", 1), ("tracekit.case.cures:in_line", 1),
        ("tracekit.expected.contention:relieved", 1), ("tracekit.expected.like_with_like:_of_one_part", 1),
        ("tracekit.expected.like_with_like:_of_pace", 1),
    )),
    Rule("tracekit.expected.contention:stage_contention", like=np.zeros_like),
    Rule("hypotheses.slow_link:_untimed", like=lambda found: found[:0]),
    Rule("tracekit.expected.contention:spun_longer", like=lambda found: found._make(a * np.nan for a in found)),
    Rule("tracekit.expected.like_with_like:role_gaps", like=lambda found: (found[0][:0], np.zeros_like(found[1]))),
)  # fmt: skip
SEEDS: Final = {
    "samples": LOOKED_AT["samples"],
    "accuracy": (*range(40), *range(5_002, 5_022)),
    "shapes": (*range(8, 105, 4), *range(1015, 1060, 6), *range(2003, 2084, 6)),
    "localise": (*range(9997003, 9997123), *range(9910190, 9910200), *range(9940040, 9940050)),
    "other": tuple(range(len(KINDS))),
}


@contextmanager
def instead(rule: Rule, other: Callable[..., Any]) -> Iterator[None]:
    """Put a function in the place of a rule, wherever it was imported."""
    original, changed = rule.function(), []
    for measured in vars(Evidence).values():
        if getattr(measured, "measure", None) is original:
            measured.measure = other
            changed.append((measured, "measure", original))
    for module in [m for name, m in sys.modules.items() if name.startswith("tracekit.")]:
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, other)
                changed.append((module, name, value))
            elif isinstance(value, tuple) and any(item is original for item in value):
                setattr(module, name, tuple(other if item is original else item for item in value))
                changed.append((module, name, value))
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def document(matched: Matched, *, explain: bool = False) -> dict[str, Any]:
    """The answer to a job whose operations are matched, as `slowrank --json` prints it."""
    run, ops, choice = matched
    case, answer = concluded(room.without_odd_steps(build(run, ops, choice.mesh, None)))
    return slowrank_document(room._finding(case, choice, refined(case, answer), explain=explain))


def answered(matched: Matched) -> dict[str, object]:
    """The answer to a job whose operations are matched, in short."""
    return in_short(document(matched))


def ledger_of(
    suite: str, seed: int, keep: Path | None, settled: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The answer to one job with all rules, and without each that says something about it and is not `settled`."""
    with matched_of(suite, seed, keep) as (truth, matched):
        said: set[str] = set()
        before = _noted(matched, said)
        rows = {}
        for rule in RULES:
            if rule.name in said - settled:
                with instead(rule, silenced(rule)):
                    rows[rule.name] = tried(matched)
    changes = {name: better(truth, before, row) for name, row in rows.items() if row != before}
    return {"key": truth.key, "word": judged(truth, before), "said": sorted(said), "changes": changes}


def better(truth: Truth, before: dict[str, Any], after: dict[str, Any]) -> int:
    """1 where an answer is better than the one before by its word, else by its price; -1 where it is worse, 0 equal."""
    gain = WEIGHT[judged(truth, after)] - WEIGHT[judged(truth, before)]
    old, new = price_error(truth, before), price_error(truth, after)
    if gain == 0 and old is not None and new is not None and abs(abs(new) - abs(old)) > PRICED_APART:
        gain = 1 if abs(new) < abs(old) else -1
    return max(-1, min(gain, 1))


def silenced(rule: Rule) -> Callable[..., Any]:
    """The function of a rule that never says anything."""
    original = rule.function()

    def nothing(*given: Any, **named: Any) -> Any:
        return rule.neutral(given, original(*given, **named) if rule.like is not None else None)

    return nothing


def tried(matched: Matched) -> dict[str, object]:
    """The answer in short, or the error that another rule raises without what was switched off."""
    try:
        return answered(matched)
    except BROKEN as error:
        return {"error": f"{type(error).__name__}: {error}"}


def noting(rule: Rule, said: set[str]) -> Callable[..., Any]:
    """The function of a rule that puts the rule's name into `said` where it says something."""
    original = rule.function()

    def noted(*given: Any, **named: Any) -> Any:
        found = original(*given, **named)
        found = list(found) if isinstance(found, Iterator) else found
        if rule.says(given, found):
            said.add(rule.name)
        return found

    return noted


def _noted(matched: Matched, said: set[str]) -> dict[str, object]:
    """The answer with all rules; the names of those that say something are put into `said`."""
    with ExitStack() as all_:
        for rule in RULES:
            all_.enter_context(instead(rule, noting(rule, said)))
        return answered(matched)


def table(rows: list[dict[str, Any]]) -> str:
    """The ledger as Markdown: a line a rule."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for name in row["said"]:
            counts[name]["said"] += 1
        for name, gain in row["changes"].items():
            counts[name]["differ"] += 1
            counts[name][{-1: "worse", 0: "equal", 1: "better"}[gain]] += 1
    head = [
        "| rule | jobs in which it speaks | answers that differ without it | worse | better |",
        "|---|---|---|---|---|",
    ]
    lines = []
    for rule in sorted(RULES, key=lambda r: (-counts[r.name]["worse"], -counts[r.name]["differ"], r.name)):
        found = counts[rule.name]
        lines.append(
            f"| `{rule.name}` | {found['said']} | {found['differ']} | {found['worse']} | {found['better']} |"
        )
    return "\n".join([*head, *lines])


def options(what: str | None) -> argparse.Namespace:
    """The command line, with the jobs to ask as `todo`."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--suite", action="append", choices=sorted(SUITES), default=[])
    parser.add_argument("--every", type=int, default=1, help="every nth job alone")
    parser.add_argument("--goldens", action="store_true", help="the jobs of the goldens alone")
    parser.add_argument("--keep", type=Path, help="keep jobs and their operations here, for the next call")
    parser.add_argument("--kept", action="store_true", help="all jobs that --keep holds, whoever made them")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write a line a job")
    parser.add_argument("--enough", type=int, default=0, help="ask no more for a rule that so many jobs need")
    chosen = parser.parse_args()
    seeds = LOOKED_AT if chosen.goldens else SEEDS
    todo = [(suite, seed) for suite in chosen.suite or sorted(SUITES) for seed in seeds[suite]]
    chosen.todo = (kept(chosen.keep) if chosen.kept else todo)[:: chosen.every]
    return chosen


def in_turn(
    chosen: argparse.Namespace, call: Callable[[], tuple[Any, ...]], learn: Callable[[dict[str, Any]], None]
) -> tuple[list[dict[str, Any]], int]:
    """Return (the rows of all jobs by key, the number of jobs that could not be read).

    A job is begun when a process is free, by the function and further arguments that `call` returns then, so that what
    `learn` was given of earlier rows counts for later jobs. The rows are kept in `chosen.json` after each.
    """
    rows: list[dict[str, Any]] = []
    failed, jobs = 0, iter(chosen.todo)
    waiting: set[Future[dict[str, Any]]] = set()
    with ProcessPoolExecutor(chosen.jobs) as pool:
        while True:
            while len(waiting) < chosen.jobs and (job := next(jobs, None)) is not None:
                function, *more = call()
                waiting.add(pool.submit(function, *job, chosen.keep, *more))
            if not waiting:
                return rows, failed
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                if isinstance(problem := future.exception(), (*BROKEN, OSError)):
                    failed += 1
                    print(type(problem).__name__, problem, file=sys.stderr)
                    continue
                learn(future.result())
                rows = sorted([*rows, future.result()], key=lambda row: row["key"])
            if chosen.json:
                chosen.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """Prints the ledger of all rules."""
    chosen = options(__doc__)
    worse: Counter[str] = Counter()

    def call() -> tuple[Any, ...]:
        settled = (name for name, often in worse.items() if chosen.enough and often >= chosen.enough)
        return ledger_of, frozenset(settled)

    def learn(row: dict[str, Any]) -> None:
        worse.update(name for name, gain in row["changes"].items() if gain < 0)

    rows, failed = in_turn(chosen, call, learn)
    print(f"{len(rows)} jobs, {failed} that could not be read\n\n{table(rows)}")


if __name__ == "__main__":
    main()
