"""A case from an ingested run: its operations, groups and mesh, the steps that are compared, and what that left out.

Every analysis of one run opens it in this way, whether it then judges the ranks or not.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tracekit.case.case import Case, build
from tracekit.case.wording import listed, ranks_in_words
from tracekit.errors import MeshError
from tracekit.findings import Quality, RankCoverage
from tracekit.inference.groups.other_recordings import is_placed, named_by_traces, strangers
from tracekit.inference.groups.unnamed_groups import with_groups_of_streams, with_rare_groups
from tracekit.inference.joined import joined
from tracekit.inference.mesh.group_uses import world_of
from tracekit.inference.mesh.mesh_choice import MeshChoice, check_rest
from tracekit.inference.peers.lost_arguments import named_after, repaired
from tracekit.inference.peers.places_in_groups import with_places_in_groups
from tracekit.matching.match import Operations, match
from tracekit.mesh.parse import ranks_in
from tracekit.placement import HostList, HostsFile, contradictions, read_hosts, unplaced
from tracekit.rank_events.operations import read_rank
from tracekit.rank_events.rank_ops import NO_KERNELS, RankOps, SharedColumns, without_device
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.steps.recorded_windows import last_windows
from tracekit.steps.step_ends import common_part, with_step_ends
from tracekit.steps.step_patterns import with_repeating_steps
from tracekit.store import Run
from tracekit.timing.measured import NoWholeStepError, StepRange
from tracekit.units import ms

_REPEATED: Final = Quality(
    "no_step_marks", None, 0, "the traces mark no steps: each repetition of the operations counts as one"
)

Sizes = dict[str, int] | None
Order = Sequence[str] | None
"""A mesh that the user gives: axis → size, inner to outer as written, and the order of axes, over that."""
Ranges = Sequence[StepRange] | None
Progress = Callable[[int, int], None] | None


def opened(run: Run, mesh: Sizes, order: Order, steps: Ranges, progress: Progress) -> tuple[Case, MeshChoice]:
    """Return the case of `run`, with the model of its steps, and its mesh. Arguments and errors as of `analyse`.

    Accepts traces without communication, because no rank is compared with another. Raises MeshUnknownError as well,
    where nothing determines the mesh.
    """
    read = with_step_ends(*read_ranks(last_windows(run, steps), mesh, progress))
    enter(progress, f"matching the operations of {len(read[1])} ranks")
    return stepped(*read, mesh, order, steps)


def with_hosts(run: Run, given: HostsFile | HostList | None) -> Run:
    """Return `run` with the places of ranks that a file names, over the hosts that traces name.

    None changes nothing. Raises InputError for a wrong file, UsageError for one of another job.
    """
    if given is None:
        return run
    made, hosts = read_hosts(given), {r.rank: r.host for r in run.ranks if r.host}
    places = made.of_job(run.world_size, hosts)
    doubts = {
        "hosts_contradict": contradictions(places, hosts),
        "hosts_incomplete": unplaced(places, (r.rank for r in run.ranks)),
    }
    quality = tuple(Quality(kind, made.path, 0, text) for kind, text in doubts.items() if text)
    ranks = tuple(replace(r, host=places[r.rank].host if r.rank in places else r.host) for r in run.ranks)
    return replace(run, ranks=ranks, places=places, quality=(*run.quality, *quality))


def enter(progress: Progress, stage: str) -> None:
    """Give the name of the next stage to a `progress` that takes it by its method `enter`."""
    tell = getattr(progress, "enter", None)
    if tell is not None:
        tell(stage)


def read_ranks(run: Run, mesh: Sizes, progress: Progress) -> tuple[Run, list[RankOps]]:
    """Return `run` with its size, and the operations of ranks with their device; InputError on unreadable events."""
    if mesh and run.world_size is None:  # traces that do not say how large the job is: the user does
        run = replace(run, world_size=ranks_in(mesh))
    ranks: list[RankOps] = []
    shared: SharedColumns = {}
    for done, record in enumerate(run.ranks, 1):
        ranks.append(repaired(read_rank(run, record.rank), final=False).sharing(shared))
        if progress:
            progress(done, len(run.ranks))
    bare = without_device(ranks)
    return run.without(bare, NO_KERNELS), [r for r in ranks if r.rank not in bare]


def stepped(
    run: Run, ranks: list[RankOps], mesh: Sizes, order: Order, steps: Ranges
) -> tuple[Case, MeshChoice]:
    """Return the case and the mesh: of marked steps, else of repetitions, else of the part that all ranks recorded."""
    try:
        return _opened(run, ranks, mesh, order, steps)
    except NoWholeStepError as error:
        if steps:
            raise
        prefix = f"{error}: "
    if any(r.steps for r in ranks):
        again = [
            replace(read_rank(run, r.rank, marked=False, windows=r.begins), group=r.group) for r in ranks
        ]
        with suppress(NoWholeStepError):
            case, choice = _opened(run, [repaired(r, final=False) for r in again], mesh, order, None)
            return replace(case, run=_with(case.run, f"{prefix}each repetition counts as one")), choice
    run = _with(run, f"{prefix}what all ranks recorded counts as one step")
    return _opened(run, ranks, mesh, order, None, common=True)


def _with(run: Run, detail: str) -> Run:
    """`run` with a quality row on what counts as a step instead of marked steps."""
    return replace(run, quality=(*run.quality, Quality("no_whole_step", None, 0, detail)))


def _opened(
    run: Run, ranks: list[RankOps], mesh: Sizes, order: Order, steps: Ranges, *, common: bool = False
) -> tuple[Case, MeshChoice]:
    """The case and the mesh of the operations read; with `common` only of the part on all ranks, as one step."""
    run, ops, choice = matched(run, ranks, mesh, order)
    case = build(run, common_part(ops) if common else ops, choice.mesh, steps)
    return replace(case, of_part=common), choice


def placed(
    run: Run, mesh: Sizes = None, order: Order = None, progress: Progress = None
) -> tuple[Run, Operations, MeshChoice]:
    """Return `run` with all inferred groups, its operations, and its mesh, without comparing steps.

    Arguments and errors as of `analyse`; raises MeshUnknownError as well, where nothing determines the mesh.
    """
    return matched(*read_ranks(last_windows(run, None), mesh, progress), mesh, order)


def matched(run: Run, ranks: list[RankOps], mesh: Sizes, order: Order) -> tuple[Run, Operations, MeshChoice]:
    """Return `run` without foreign recordings and with the groups that its operations show, these, and the mesh.

    Raises MeshError where process groups contradict each other, MeshUnknownError where nothing determines the mesh.
    """
    named, read, in_traces = run.groups, ranks, named_by_traces(ranks)
    marked = any((r.step != NO_STEP).any() for r in ranks)
    ranks = with_places_in_groups(ranks, run.groups)
    ranks = with_repeating_steps(ranks, None) or ranks
    run, ranks = with_groups_of_streams(run, ranks, mesh, order)
    ranks = with_repeating_steps(ranks, run.groups) or ranks
    if not marked and any((r.step != NO_STEP).any() for r in ranks):
        run = replace(run, quality=(*run.quality, _REPEATED))
    ranks = [repaired(r) for r in ranks]
    in_traces = named_after(in_traces, read, ranks)
    ops = match(ranks, run.groups)
    asked = run.groups == named or run.job is not None
    if asked and (others := strangers(ops, in_traces, run.job, chosen=run.chosen, placed=is_placed(run))):
        run = run.without(
            others,
            "its collectives do not end when the other ranks' do: it belongs to another recording, or its clock jumped",
        )
        ops = match([r for r in ranks if r.rank not in others], run.groups)
    return _settled(run, ops, mesh, order)


def _settled(run: Run, ops: Operations, mesh: Sizes, order: Order) -> tuple[Run, Operations, MeshChoice]:
    """Return what `matched` does: peers, mesh and groups help to find each other, until no group changes.

    Each round only adds groups, so that one adds none. Groups that contradict each other later change no mesh.
    """
    known, found = None, joined(run, ops, mesh, order)
    while known != run.groups:
        if known is not None:
            with suppress(MeshError):
                found = joined(run, found.ops, mesh, order, found.lines)
        known = run.groups
        run, ops = with_rare_groups(run, found.ops, found.choice.mesh)
        found = found._replace(ops=ops)
    check_rest(run, ops, found.choice)
    return run, found.ops, found.choice


def ranks_of(case: Case) -> RankCoverage:
    """Return the ranks that an answer about `case` rests on."""
    world = world_of(case.run, case.ops)
    return RankCoverage(len(world), len(case.ops.ranks), case.missing, case.run.rejected)


def quality_of(case: Case, choice: MeshChoice) -> tuple[Quality, ...]:
    """Return the quality rows of the files, the mesh, and what the analysis left out or assumed."""
    rows = [*case.run.quality, *choice.quality]
    if case.steps.partial:
        what = f"not recorded whole on enough ranks: {listed(case.steps.partial)}"
        rows.append(Quality("partial_steps", None, len(case.steps.partial), what))
    if late := case.steps.begun_late:
        numbers, late_by = (sorted(set(part)) for part in zip(*late, strict=True))
        what = f"{ranks_in_words(late_by)} began step {listed(numbers)} late, as each later one: it counts as own time"
        rows.append(Quality("late_begin", None, len(late), what))
    if ranks := case.unmeasured:
        what = (
            f"{ranks_in_words(ranks)} recorded none of the compared steps whole: own times are unknown there"
        )
        rows.append(Quality("unmeasured_ranks", None, len(ranks), what))
    if not case.steps.labelled:
        what = "the traces mark no steps: all they hold counts as one step"
        rows.append(Quality("no_step_marks", None, 0, what))
    if case.ops.mismatched:
        what = "members disagree about the operation; left out"
        rows.append(Quality("mismatched_operations", None, case.ops.mismatched, what))
    if case.ops.unmatched:
        rows.append(Quality("unmatched_operations", None, case.ops.unmatched, "no other rank recorded them"))
    unread = case.ops.among(("send_recv",)) & (case.ops.channel < 0) & case.analysed
    if unread.any():
        waited = f"{ms(float(case.ops.exposed[unread].sum())):.1f} ms"
        what = f"messages without a known peer: compute was idle during them for {waited}, waiting or not"
        rows.append(Quality("messages_without_peer", None, int(unread.sum()), what))
    return tuple(rows)
