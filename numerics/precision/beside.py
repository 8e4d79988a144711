"""The precision ladder beside a comparison: given, kept from before, made now, or else how to make it.

The comparison's verdict never rests on it: the ladder asks the same pair of runs another question.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numerics.comparison.next_step import ladder_of
from numerics.findings import CompareFinding
from numerics.order.replayer import replayer
from numerics.precision.ladder import POLICIES, LadderFinding, climb, ladder, policy_of
from numerics.store import open_capture
from numerics.thresholds.reading import MAX_PAIR_BYTES
from tracekit.errors import InputError

PAIR: Final = "pair.json"
"""File beside repeated runs: the ids of the two runs that they repeat, and the policies in which."""

Progress = Callable[[str], None] | None


@dataclass(frozen=True)
class LadderBeside:
    """The ladder of the compared pair; `finding` is None where there is none.

    `why_not` says then why, as the end of a sentence; `command` is what makes one, None where nothing does.
    """

    finding: LadderFinding | None
    why_not: str = ""
    command: str | None = None


def ladder_folder(run: Path) -> Path:
    """Return the folder that keeps the repeated runs of a pair, within the run in question."""
    return run / "ladder"


def climb_and_keep(parallel: Path, baseline: Path, out: Path, progress: Progress = None) -> LadderFinding:
    """Return the ladder of a pair that its trainer repeats, and note in `out` which runs were repeated there.

    InputError as `climb`.
    """
    ids = _ids(parallel, baseline)
    (out / PAIR).unlink(missing_ok=True)
    finding = climb(parallel, baseline, out, progress)
    if all(ids):
        own = policy_of(open_capture(parallel))
        note = {"runs": ids, "policies": [policy for policy in finding.policies if policy != own]}
        (out / PAIR).write_text(json.dumps(note) + "\n", encoding="utf-8")
    return finding


def refuse_to_climb(run: Path) -> None:
    """Raise InputError where no ladder of a run can be made by its trainer, before any work."""
    capture = open_capture(run)
    policy_of(capture)
    replayer(capture.source)


def ladder_beside(
    compared: CompareFinding,
    pairs: Sequence[tuple[Path, Path]] = (),
    *,
    make: bool = False,
    progress: Progress = None,
) -> LadderBeside:
    """Return the ladder of a compared pair: of the finer `pairs` given, else as kept in RUN/ladder, else made now.

    Without `make`, and where none is kept, the answer says so. InputError where a ladder that was asked for fails.
    """
    if compared.baseline is None:
        return LadderBeside(None, "it needs a second run; name it with --baseline")
    if compared.verdict == "incomparable":
        return LadderBeside(None, "the runs do not compute the same thing in any format")
    run, baseline = Path(compared.parallel), Path(compared.baseline)
    if pairs:
        return LadderBeside(ladder([(run, baseline), *pairs]))
    try:
        kept, why_not = _kept(run, baseline)
    except (InputError, OSError, ValueError, RecursionError) as error:
        kept, why_not = None, f"the one that is kept cannot be read ({error})"
    if kept is None and make:
        kept = climb_and_keep(run, baseline, ladder_folder(run), progress)
    return LadderBeside(kept) if kept is not None else LadderBeside(None, why_not, _command(run, baseline))


def _kept(run: Path, baseline: Path) -> tuple[LadderFinding | None, str]:
    """Return the ladder of the repetitions in RUN/ladder; None, and why, where these are of another pair or absent."""
    out = ladder_folder(run)
    note = out / PAIR
    if not note.is_file():
        return None, "it was not asked for"
    with note.open("rb") as file:
        noted = json.loads(file.read(MAX_PAIR_BYTES))
    ids, noted_runs = _ids(run, baseline), noted if isinstance(noted, dict) else {}
    if not all(ids) or noted_runs.get("runs") != ids:
        return None, f"{out} repeats other runs"
    policies = noted_runs.get("policies")
    repeated = [policy for policy in POLICIES if isinstance(policies, list) and policy in policies]
    return ladder([(run, baseline), *((out / f"parallel_{p}", out / f"baseline_{p}") for p in repeated)]), ""


def _ids(run: Path, baseline: Path) -> list[str]:
    """Return the ids that two runs carry; empty ones in captures that are older than ids."""
    return [open_capture(run).run, open_capture(baseline).run]


def _command(run: Path, baseline: Path) -> str:
    """Return the command that shows the ladder: with `--ladder` where the trainer can repeat the runs."""
    try:
        refuse_to_climb(run)
    except InputError:
        return ladder_of(open_capture(run), baseline)
    names = f"--parallel {shlex.quote(str(run))} --baseline {shlex.quote(str(baseline))}"
    return f"numerics compare {names} --ladder --html FILE"
