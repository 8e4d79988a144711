"""Compares a run with a baseline: opens the captures, joins them, finds the first divergence, decides.

The matched replay comes from `Options.replay`, else from RUN/replay, else `Options.make_replay` makes it. Without any
of them the verdict rests on the baseline, the order plans and the run's invariants alone.

What proves a run from recorded values imports torch, and is imported where there are values: captures of digests are
compared without torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numerics.columns import Columns, Names, read_columns
from numerics.comparison.broken import Broken
from numerics.comparison.broken_invariants.invariants import broken_invariants
from numerics.comparison.broken_invariants.not_finite import numbers_lost
from numerics.comparison.broken_invariants.random_numbers import drawn_alike, random_notes, with_draws
from numerics.comparison.explanations.explanation import Explanation
from numerics.comparison.explanations.number_formats import format_of_plan, narrower_format
from numerics.comparison.explanations.rules import by_collective, by_copies, explain
from numerics.comparison.first_divergence import Found, first_divergence, first_of
from numerics.comparison.forced_replay import ForcedReplay, forced_replay
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.comparison.joins.row_table import RowTable, by_row
from numerics.comparison.joins.tensor_table import Status, TensorTable, by_tensor
from numerics.comparison.matched_replay import MakeReplay, NoReplay, differences_from_declared, find_replay
from numerics.comparison.next_step import ladder_of, what_decides
from numerics.comparison.nothing_in_common import nothing_in_common
from numerics.comparison.preconditions import other_model, thread_note, why_incomparable
from numerics.comparison.random_difference import parted_by_chance, perhaps_by_chance
from numerics.comparison.resumed import Resumed, counted_from, going_on, lost_state, resumed
from numerics.comparison.summary import finding_of, incomparable, other_way_round, rows_of
from numerics.comparison.verdict import Case, Decision, baseline_kinds, computed_in_common, decide
from numerics.errors import CaptureError
from numerics.findings import CompareFinding
from numerics.formats import least_roundoff
from numerics.order.affected_tensors import affected_tensors
from numerics.order.order_plan import read_plan
from numerics.schema import WATCHED
from numerics.store import open_capture
from numerics.thresholds.comparison import OTHER_FORMAT, OTHER_FORMAT_LEAST
from numerics.thresholds.local import NO_ROUNDING
from tracekit.errors import InputError

if TYPE_CHECKING:
    from numerics.local.proof import LocalProof


@dataclass(frozen=True)
class Options:
    """Where the matched replay comes from.

    `replay` is its folder; None takes RUN/replay where it is, else what `make_replay` makes (None: nothing). `prove`
    proves the run locally instead, piece by piece from its own recorded inputs.
    """

    replay: Path | None = None
    make_replay: MakeReplay | None = None
    prove: Callable[[Columns], "LocalProof"] | None = None


def compare(parallel: Path, baseline: Path | None, options: Options | None = None) -> CompareFinding:
    """Return how a run compares with a baseline or, without one, with its own matched replay.

    Both are run folders that hold a capture. Runs that cannot be compared get the verdict `incomparable`. InputError
    where a capture or an order plan is damaged, cut short or foreign.
    """
    names = Names()
    run = read_columns(open_capture(parallel), names)
    base = None if baseline is None else read_columns(open_capture(baseline), names)
    if base is None:
        return _compared(run, None, None, options or Options(), ())
    reason = why_incomparable(run.capture, base.capture)
    if reason is not None:
        return incomparable(run, base, reason)
    since = resumed(run, base)
    back = resumed(base, run) if since is None else None
    run = run if since is None else counted_from(run, since)
    base = base if back is None else counted_from(base, back)
    tensors = by_tensor(run, base)
    reason = other_model(run, tensors, base)
    if reason is not None:
        return incomparable(run, base, reason)
    if (options or Options()).prove is None and not computed_in_common(
        run, tensors
    ).any():  # a proof needs none
        return nothing_in_common(run, base)
    if back is not None and (not back.same or lost_state(base, run, back.after)):
        return other_way_round(run, base, back.after)
    threads = thread_note(run.capture, base.capture)
    return _compared(run, base, tensors, options or Options(), (threads,) if threads else (), since)


def _compared(
    run: Columns,
    baseline: Columns | None,
    tensors: TensorTable | None,
    options: Options,
    notes: tuple[str, ...],
    since: Resumed | None = None,
) -> CompareFinding:
    """Collect the evidence on comparable runs, decide, and return the finding; `since` says how the run goes on."""
    lost, goes_on, begins = going_on(run, baseline, since)
    notes = (*notes, *((goes_on,) if goes_on else ()), *random_notes(run))
    other = None if baseline is None else baseline.capture.folder
    command = what_decides(run.capture, other)
    broken = [*lost, *numbers_lost(run, baseline), *with_draws(run, broken_invariants(run))]
    case = Case(run, baseline, tensors, broken, decide=command, goes_on=goes_on, begins=begins)
    if options.prove is not None:
        after = ladder_of(run.capture, other)
        return _proved_locally(replace(case, decide=after), options.prove, notes)
    case = replace(case, apart=perhaps_by_chance(case))
    kinds = baseline_kinds(case)
    found = None
    if kinds is None or kinds.real or kinds.reporting or case.broken:
        case = _with_replay(
            case, since, options.replay, options.make_replay if kinds is None or kinds.real else None
        )
    if case.replay is None:
        case = replace(case, beyond_plan=_beyond_plan(case))
    elif case.rows is not None:
        found = first_divergence(run, case.replay, case.rows)
        if found is not None:
            case, found = _judged(case, case.replay, case.rows, found, options.make_replay)
    if case.replay is None and (kinds is None or kinds.real):
        proved = _proved_by_records(case, notes)
        if proved is not None:
            return proved
    return finding_of(case, _with_alike(decide(case), run), found, notes)


def _proved_by_records(case: Case, notes: tuple[str, ...]) -> CompareFinding | None:
    """Return the finding that the recorded values of a watched run give; None where it kept none, or they give none."""
    if case.run.capture.source != WATCHED or not case.run.capture.values:
        return None
    from numerics.comparison.proofs.record_answer import answer_by_records

    answer = answer_by_records(case)
    return answer and _proved(case, answer[1], _with_alike(answer[0], case.run), notes)


def _with_alike(decision: Decision, run: Columns) -> Decision:
    """Return a decision that says which data-parallel ranks draw the same random numbers, where some do."""
    alike = drawn_alike(run)
    return replace(decision, reason=f"{decision.reason}; {alike}") if alike else decision


def _proved_locally(
    case: Case, prove: Callable[[Columns], "LocalProof"], notes: tuple[str, ...]
) -> CompareFinding:
    """Decide a case by its local proof, and return the finding; a baseline is proved too where the answer needs it."""
    from numerics.comparison.proofs.drawn_beside import settled_by_draws
    from numerics.comparison.proofs.local_answer import decide_locally
    from numerics.comparison.proofs.other_settings import with_other_settings

    proof = with_other_settings(case.run, case.baseline, prove(case.run))
    apart = parted_by_chance(case, proof)
    baseline = _proof_of_baseline(case, prove) if apart is not None or proof.silent else None
    case = replace(case, apart=settled_by_draws(apart, proof, baseline))
    return _proved(case, proof, decide_locally(case, proof, baseline), notes)


def _proved(case: Case, proof: "LocalProof", decision: Decision, notes: tuple[str, ...]) -> CompareFinding:
    """Return the finding on a case that was decided by a local proof."""
    from numerics.comparison.proofs.local_answer import first_wrong, local_notes
    from numerics.comparison.proofs.local_explanation import divergence_of, explanation_of
    from numerics.comparison.proofs.local_scope import not_checked

    finding = finding_of(case, decision, None, (*notes, *local_notes(proof)))
    finding = replace(finding, not_checked=not_checked(case.run, proof, alone=case.baseline is None))
    wrong = first_wrong(proof)
    if wrong is None or decision.proof == "invariant":
        return finding
    return replace(
        finding,
        first_divergence=divergence_of(case.run, wrong, proof),
        explanation=explanation_of(case.run, wrong),
    )


def _proof_of_baseline(case: Case, prove: Callable[[Columns], "LocalProof"]) -> "LocalProof | None":
    """Return the local proof of the baseline; None without a baseline, or where it cannot be proved."""
    if case.baseline is None:
        return None
    try:
        return prove(case.baseline)
    except InputError:
        return None


def _with_replay(case: Case, since: Resumed | None, given: Path | None, make: MakeReplay | None) -> Case:
    """Find or make the replay and join it; the case keeps the reason where there is none to use."""
    try:
        replay = find_replay(case.run, given, make)
    except NoReplay as reason:
        other = None if case.baseline is None else case.baseline.capture.folder
        command = what_decides(case.run.capture, other, refused=given is None and make is not None)
        return replace(case, no_replay=str(reason), decide=command)
    replay = replay if since is None else counted_from(replay, since)
    rows = by_row(case.run, replay)
    plan = differences_from_declared(case.run.capture.folder, replay.capture.folder)
    return replace(case, replay=replay, rows=rows, plan=plan, broken=_really_broken(case.broken, rows))


def _really_broken(broken: Sequence[Broken], rows: RowTable) -> list[Broken]:
    """Return the broken invariants that the replay does not break in the same way (with rows that equal its rows)."""
    return [
        one
        for one in broken
        if not all(rows.match[r] >= 0 and rows.status[r] == Status.EQUAL for r in one.rows)
    ]


def _judged(
    case: Case, replay: Columns, rows: RowTable, found: Found, make: MakeReplay | None
) -> tuple[Case, Found]:
    """Return the case with its explanation, and the place to name: the forced replay separates rounding from a bug.

    The place is the first divergence from the matched replay, unless that is rounding and something after it is not.
    """
    large = RowPairs(case.run, replay, rows).relative(found.rows) >= NO_ROUNDING
    with forced_replay(case.run, None if large else make) as forced:
        rounding = None if forced is None or case.broken else forced.rounding(case.run)
        if rounding is not None:
            return replace(case, rounding=rounding), found
        unsure = None if forced is None or case.broken else forced.open(case.run)
        if unsure is not None:
            return replace(case, unsure=unsure), found
        if forced is not None and forced.wrong:
            return _beyond_rounding(case, replay, rows, found, forced, make)
    return replace(case, explanation=_explained(case, replay, rows, found, make)), found


def _beyond_rounding(
    case: Case, replay: Columns, rows: RowTable, found: Found, forced: ForcedReplay, make: MakeReplay | None
) -> tuple[Case, Found]:
    """Explain the first difference that rounding does not; return the case and that place."""
    here = [row for row in found.rows if row in forced.wrong]
    later = None if here else first_divergence(case.run, forced.columns, forced.blamed())
    if later is not None:
        found, replay, rows, make = later, forced.columns, forced.blamed(), None
    explanation = _explained(case, replay, rows, found, make)
    if explanation is not None and explanation.rounding:
        explanation = None  # the bound shows that it is more
    row = next((r for r in (*here, *found.rows) if r in forced.wrong), None)
    which = "" if row is None else f"{case.run.name('tensor', row)} {forced.wrong[row]}"
    return replace(case, explanation=explanation, beyond=which), found


def _explained(
    case: Case, replay: Columns, rows: RowTable, found: Found, make: MakeReplay | None
) -> Explanation | None:
    """Return the relation of the first divergence to the right value; small ones may be another format's rounding."""
    pairs = RowPairs(case.run, replay, rows)
    answer = explain(pairs, found)
    if answer is not None and answer.dtype is not None:
        return answer
    by_plan = format_of_plan(case.plan)
    if by_plan is not None and pairs.relative(found.rows) < OTHER_FORMAT:
        return by_plan
    rounding, size = answer is None or answer.rounding, pairs.relative(found.rows)
    least = OTHER_FORMAT_LEAST * least_roundoff("bfloat16")
    if rounding and make is not None and least <= size < OTHER_FORMAT:
        answer = narrower_format(case.run, found, make, case.run.names) or answer
    if answer is None or answer.rounding:
        owner = replay if found.missing else case.run
        answer = by_collective(found, owner) or by_copies(case.run, found, case.broken) or answer
    return answer


def _beyond_plan(case: Case) -> tuple[int, ...]:
    """Return rows of the first tensor that differs though no difference between the two order plans affects it."""
    if case.tensors is None or case.baseline is None:
        return ()
    try:
        mine, other = read_plan(case.run.capture.folder), read_plan(case.baseline.capture.folder)
    except CaptureError as error:
        raise InputError(str(error)) from error
    if mine is None or other is None:
        return ()
    affected, table, text = affected_tensors(mine, other), case.tensors, case.run.names.text
    wrong = np.zeros(len(table.status), bool)
    for entry in np.flatnonzero(table.status == Status.DIFFERENT):
        phase, kind, tensor = (text(int(column[entry])) for column in (table.phase, table.kind, table.tensor))
        wrong[entry] = not affected.may_differ(int(table.step[entry]), phase, kind, tensor)
    return first_of(case.run, rows_of(case.run, table, wrong))
