"""The files of an input by job and by kind: what each is, and which command reads it. First step of `triage`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tracekit.evidence.gather import Gathered
from tracekit.evidence.recognise import Form
from tracekit.files.discover import Found
from tracekit.findings.triage import EvidenceKind, FoundFile

_KINDS: Final[Mapping[Form, tuple[EvidenceKind, str]]] = {
    "dump": ("dump", "read by `tracekit hang`"),
    "trace": ("trace", "read by `tracekit slowrank`"),
    "table": ("operation_table", "read by `tracekit slowrank`"),
    "inspector": (
        "nccl_inspector",
        "read by `tracekit slowrank`: of one collective, the rank with the shortest time came last",
    ),
    "nsys": ("nsys", "read by `tracekit slowrank`"),
    "nsys_report": (
        "nsys",
        "not read: export it with `nsys export --type sqlite --include-blobs=true`, which `tracekit slowrank` reads",
    ),
}
"""The kind of a form that has a reader of its own, and what reads it."""
_CAPTURED: Final = "read by `numerics compare --parallel THIS --baseline OTHER`"
_OWN_FILES: Final = ("run.json", "order_plan.json", "expected.json", "manifest.json", "stamp.json")
"""Names of files that our own programs leave beside the evidence."""
_OWN_PARTS: Final = ("capture", "metrics", "checkpoint")
"""Folders of a recorded run that hold no evidence of a slow or stuck job."""


@dataclass
class Job:
    """The files of one recorded run, or all that are in none. folder: that of the run, "" for the others."""

    folder: str
    files: list[FoundFile] = field(default_factory=list)
    by_form: dict[Form, list[str]] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)


def jobs_of(found: Found, gathered: Gathered) -> tuple[list[Job], list[str]]:
    """Return the jobs among the files, in the order of their folders, and the files that nothing reads."""
    jobs: dict[str, Job] = {}

    def job(path: str) -> Job:
        folder = found.run_of(path)
        return jobs.setdefault(folder, Job(folder))

    captured: set[str] = set()
    for file in gathered.files:
        job(file.path).files.append(replace(file, job=found.run_of(file.path) or None))
    for form, paths in gathered.by_form.items():
        for path in paths:
            if _is_own(path, found):
                captured |= _capture(path)
                continue
            own = job(path)
            own.by_form.setdefault(form, []).append(path)
            kind, detail = _KINDS.get(form, ("trace", ""))
            own.files.append(FoundFile(kind, path, (), None, None, own.folder or None, detail))
    for path in found.ingested:
        jobs.setdefault(path, Job(path)).runs.append(path)
        jobs[path].files.append(FoundFile("run", path, (), None, None, path, "read by `tracekit slowrank`"))
    unknown = []
    for path in gathered.unknown:
        if _is_own(path, found) or Path(path).name in _OWN_FILES:
            captured |= _capture(path)
        else:
            unknown.append(path)
    for folder in sorted(captured):
        job(folder + "/x").files.append(FoundFile("capture", folder, (), None, None, None, _CAPTURED))
    return [jobs[folder] for folder in sorted(jobs)], sorted(unknown)


def _is_own(path: str, found: Found) -> bool:
    """Return whether a file is a part of a recorded run that is no evidence here."""
    run = found.run_of(path)
    inner = Path(path).relative_to(run).parts[0] if run and Path(path).is_relative_to(run) else ""
    return inner in _OWN_PARTS or bool(_capture(path))


def _capture(path: str) -> set[str]:
    """Return the folder of the capture that a file belongs to; none where it belongs to none."""
    folders = [parent for parent in Path(path).parents if (parent / "stamp.json").is_file()]
    return {str(folders[0])} if folders else set()
