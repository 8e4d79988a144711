"""Chooses the job of an input to analyse: the user's choice, or the job of all but a few stray files."""

from collections.abc import Sequence

from tracekit.errors import InputError, UsageError
from tracekit.files.jobs import jobs_of
from tracekit.files.witness import Job, Witness
from tracekit.thresholds.ingest import STRAY_SHARE


def refused(files: Sequence[Witness], wanted: int | None) -> tuple[dict[str, str], int | None]:
    """Return why files are left out, by label, and the number of the chosen job; None where all are of one job.

    wanted: the number of a job, from 1, the one with most ranks first. Raises UsageError if there is no such job,
    InputError if none was chosen, unless the other jobs are only a few stray files.
    """
    jobs = jobs_of(files)
    if len(jobs) < 2:
        return {}, None
    described = "; ".join(f"{n}: {_told(job)}" for n, job in enumerate(jobs, 1))
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
    return job.told or f"{len(job.ranks)} ranks"


def _told(job: Job) -> str:
    """Return a job in some words: its distinction, its ranks, and a file unless the words name its folder."""
    ranks = f"{len(job.ranks)} ranks" if len(job.ranks) > 1 else f"rank {job.ranks[0]}"
    first = job.files[0].label
    return f"{job.told}, {ranks}" + ("" if job.told.startswith(("run ", "folder ")) else f", first {first}")
