"""The command `tracekit doctor`: what this installation can do, and what to install for the rest."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

import click

from tracekit.ingest.kineto.compiled import scanner_code
from tracekit.installation import DISTRIBUTION, Package, by_extra, packages, temporary_folder
from tracekit.text import plain

from .. import exit_codes
from ..output import said
from ..settings import NAMED, settings_file

GIVES: Final = {
    "fast": "compiled reading of traces over 128 MB",
    "hta": "comparison with HolisticTraceAnalysis",
    "perfetto": "--perfetto",
    "prometheus": "--prometheus",
    "ray": "--engine ray",
    "report": "--html",
    "s3": "inputs of s3://",
    "train": "reftrain, and numerics on recordings of one's own",
}
"""What users get from an extra; the other extras are for work on the package."""
_GIB: Final = 1 << 30


@click.command()
def doctor() -> int:
    """Say what this installation can do: versions, extras, folders and settings.

    Exit 3 where something that every command needs is missing or cannot be written. Paste the answer into a bug report.

    \b
    tracekit doctor > doctor.txt
    """
    broken = False
    for label, state, fine in _checks():
        broken |= not fine
        said(plain(f"{'' if fine else '! '}{label:<10}  {state}") + "\n")
    return exit_codes.INPUT if broken else exit_codes.OK


def _checks() -> Iterator[tuple[str, str, bool]]:
    """(label, what was found, whether commands can work with it), a line each."""
    found = packages()
    cores = len(os.sched_getaffinity(0))
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {cores} cores"
    yield "version", f"{DISTRIBUTION} {version(DISTRIBUTION)}", True
    yield "system", system, True
    for extra, asked in by_extra(found).items():
        if not extra:
            yield "needed", _listed(asked), all(p.serves for p in asked)
        elif extra in GIVES:
            yield extra, _of_extra(extra, asked), True
    yield _temporary()
    code = scanner_code.code_folder()
    yield (
        "cache",
        str(code) if code else "no folder that only you can write to: nothing is kept compiled",
        True,
    )
    path = settings_file()
    yield "settings", str(path) if path else f"no tracekit.toml here, and no {NAMED}", True


def _listed(asked: list[Package]) -> str:
    return ", ".join(_in_words(p) for p in asked)


def _in_words(package: Package) -> str:
    if package.installed is None:
        return f"{package.name} MISSING"
    return f"{package.name} {package.installed}" + ("" if package.serves else f" (needs {package.least})")


def _of_extra(extra: str, asked: list[Package]) -> str:
    if all(p.serves for p in asked):
        return f"{_listed(asked)}: {GIVES[extra]}"
    return f"{_listed(asked)}; for {GIVES[extra]}: pip install '{DISTRIBUTION}[{extra}]'"


def _temporary() -> tuple[str, str, bool]:
    folder, why = temporary_folder()
    if why:
        return "temporary", f"{folder}: {why}; free space there, or set TMPDIR", False
    return "temporary", f"{folder}, {shutil.disk_usage(folder).free / _GIB:.1f} GiB free", True
