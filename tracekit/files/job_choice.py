"""Chooses the job of an input to analyse: the user's choice, or the job of all but a few stray files."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from tracekit.errors import InputError, UsageError
from tracekit.files.rival_recordings import by_recording
from tracekit.files.witness import Job, Witness
from tracekit.thresholds.ingest import FILES_NAMED, JOBS_SEPARATED, STRAY_SHARE


def refused(files: Sequence[Witness], wanted: int | None) -> tuple[dict[str, str], int | None]:
    """Return why files are left out, by label, and the number of the chosen job; None where all are of one job.

    wanted: the number of a job, from 1, the one with most ranks first. Raises UsageError if there is no such job,
    InputError if none was chosen, unless the other jobs are only a few stray files.
    """
    jobs = jobs_of(files)
    if len(jobs) < 2:
        return {}, None
    described = "; ".join(f"{n}: {_in_words(job)}" for n, job in enumerate(jobs, 1))
    if wanted is not None and wanted > len(jobs):
        raise UsageError(
            f"--job {wanted}: the input holds {len(jobs)} jobs ({described}); choose one of these"
        )
    strays = len(files) - len(jobs[0].files)
    clear = strays <= STRAY_SHARE * len(files) and not any(job.surely for job in jobs)
    if wanted is None and not clear:
        raise InputError(
            f"the input holds recordings of {len(jobs)} jobs, which are never compared ({described}); choose one with "
            "--job 1, or give the files of one job"
        )
    number = wanted or 1
    reasons = {}
    if not clear:
        unknown = f"it does not show which of {len(jobs)} jobs it belongs to"
        reasons.update(dict.fromkeys((label for job in jobs for label in job.silent), unknown))
    for other, job in enumerate(jobs, 1):
        if other != number:
            mine = _about(jobs[number - 1])
            reason = (
                f"it belongs to another job ({_about(job)}); only the files of job {number} are read ({mine})"
            )
            reasons.update({f.label: f"{reason}; --job {other} reads it" for f in job.files})
    return reasons, number


def _about(job: Job) -> str:
    return job.name or f"{len(job.ranks)} ranks"


def _in_words(job: Job) -> str:
    """Return a job in some words: its distinction, its ranks, and a file unless the words name its folder."""
    ranks = f"{len(job.ranks)} ranks" if len(job.ranks) > 1 else f"rank {job.ranks[0]}"
    first = job.files[0].label
    return f"{job.name}, {ranks}" + ("" if job.name.startswith(("run ", "folder ")) else f", first {first}")


# Finds the files of one job: files of other jobs, and further recordings of the same ranks, are separated.
#
# A job has one run folder, one world size and one division of its ranks into named groups, and records each
# step of each rank once. Clocks are not trusted: whether ranks were recorded at other times is decided where
# their operations can be compared (inference.groups.other_recordings).


def jobs_of(files: Sequence[Witness]) -> list[Job]:
    """Return the jobs that `files` are of, the one with most ranks first; one job if nothing separates them."""
    jobs = [Job(tuple(sorted(files, key=lambda f: f.label)))]
    for divided in (
        _by_run,
        _by_world,
        _by_mesh,
        _by_group_sizes,
        _by_group_members,
        by_recording,
        _by_moment,
    ):
        jobs = [part for job in jobs for part in divided(job)]
    return sorted(jobs, key=lambda j: (-len(j.ranks), j.files[0].label if j.files else ""))


def _divided(job: Job, key: Callable[[Witness], str | None], name: str, *, surely: bool = False) -> list[Job]:
    """Return `job` divided by the keys of its files; files without a key go to the largest part."""
    parts: dict[str, list[Witness]] = defaultdict(list)
    silent = [file for file in job.files if key(file) is None]
    for file in job.files:
        found = key(file)
        if found is not None:
            parts[found].append(file)
    if len(parts) < 2:
        return [job]
    largest = max(sorted(parts), key=lambda k: len(parts[k]))
    parts[largest].extend(silent)
    unknown = job.silent | {file.label for file in silent}
    return [
        Job(tuple(mine), name.format(k), surely or job.surely, unknown & {f.label for f in mine})
        for k, mine in sorted(parts.items())
    ]


def _by_run(job: Job) -> list[Job]:
    """Return one job for each recorded run among the files, and one for files of no run."""
    runs = {f.run for f in job.files if f.run}
    return _divided(job, lambda f: f.run, "run {}", surely=True) if len(runs) > 1 else [job]


def _by_world(job: Job) -> list[Job]:
    return _divided(job, lambda f: None if f.world is None else str(f.world), "world size {}")


def _by_mesh(job: Job) -> list[Job]:
    return _divided(job, lambda f: f.mesh or None, "mesh {}")


def _by_group_sizes(job: Job) -> list[Job]:
    """Return the job divided so that each description has groups of one size in a job."""
    claims: dict[frozenset[tuple[str, int]], list[Witness]] = defaultdict(list)
    for file in job.files:
        claims[frozenset((desc, len(ranks)) for desc, ranks in file.groups)].append(file)
    sizes: list[dict[str, int]] = []
    parts: list[list[Witness]] = []
    for claim, mine in sorted(claims.items(), key=lambda c: (-len(c[1]), c[1][0].label)):
        fits = (n for n, known in enumerate(sizes) if all(known.get(d, size) == size for d, size in claim))
        number = next(fits, len(sizes))
        if number == len(sizes):
            if len(sizes) == JOBS_SEPARATED:
                return [job]
            sizes.append({})
            parts.append([])
        sizes[number].update(dict(claim))
        parts[number].extend(mine)
    if len(parts) < 2 or _programs_of_one_job(parts):
        return [job]
    differing = {d for known in sizes for d, n in known.items() if any(k.get(d, n) != n for k in sizes)}
    names = [
        ", ".join(f"{d} groups of {known[d]}" for d in sorted(differing & known.keys())) for known in sizes
    ]
    return [Job(tuple(mine), said, job.surely) for mine, said in zip(parts, names, strict=True)]


def _programs_of_one_job(parts: Sequence[Sequence[Witness]]) -> bool:
    """Return whether `parts` are programs beside each other, as an encoder and a language model: of one world.

    No group of one part holds a rank of another.
    """
    worlds = {file.world for part in parts for file in part}
    members = [
        {w.rank for file in part for w in file.windows}
        | {r for file in part for _, g in file.groups for r in g}
        for part in parts
    ]
    return len(worlds) == 1 and None not in worlds and sum(map(len, members)) == len(set().union(*members))


def _by_group_members(job: Job) -> list[Job]:
    """Return the job divided so that different groups of one description share no member in a job."""
    parts: list[list[Witness]] = []
    known: list[dict[tuple[str, int], tuple[int, ...]]] = []
    seen: list[set[tuple[str, tuple[int, ...]]]] = []
    for file in job.files:
        for number, groups in enumerate(known):
            fresh = [g for g in file.groups if g not in seen[number]]
            if all(groups.get((desc, r), ranks) == ranks for desc, ranks in fresh for r in ranks):
                break
        else:
            if len(parts) == JOBS_SEPARATED:
                return [job]
            number, fresh = len(parts), list(file.groups)
            parts.append([])
            known.append({})
            seen.append(set())
        seen[number].update(fresh)
        known[number].update({(desc, r): ranks for desc, ranks in fresh for r in ranks})
        parts[number].append(file)
    if len(parts) < 2:
        return [job]
    return [Job(tuple(mine), _example(mine, parts), job.surely) for mine in parts]


def _example(mine: Sequence[Witness], parts: Sequence[Sequence[Witness]]) -> str:
    """Return a group that one part names and the others do not, as text; "" without one."""
    others = {g for part in parts if part is not mine for f in part for g in f.groups}
    own = {g for f in mine for g in f.groups} - others
    if not own:
        return ""
    desc, ranks = min(own, key=lambda g: (len(g[1]), g))
    more = ", …" if len(ranks) > FILES_NAMED else ""
    return f"{desc} group of ranks {', '.join(map(str, ranks[:FILES_NAMED]))}{more}"


def _by_moment(job: Job) -> list[Job]:
    """Return the job divided by the time at which files were written, if it differs from that of most files."""
    return _divided(job, lambda f: f.moment, "written at {}", surely=True)
