"""Counters of GPUs and hosts, and errors of GPUs that kernels log, beside traces: which files, and what reads them.

`slowrank` reads traces alone, and `triage` what it is given. A file beside them is never read silently: it may be of
another job. So both only say which file would support or exclude their answer, and the command for that.
"""

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracekit.errors import TracekitError
from tracekit.evidence.gather import find_everything
from tracekit.evidence.recognise import form_of, head_of
from tracekit.files.discover import Inputs, listed
from tracekit.files.far import is_url
from tracekit.files.source import Source
from tracekit.findings import Quality
from tracekit.text import without_secrets
from tracekit.thresholds.evidence import BESIDE_SHOWN, MAX_BESIDE, MAX_KERNEL_LOG

_XID: Final = b"NVRM: Xid ("
_TRACE: Final = ".json"


@dataclass(frozen=True)
class Unread:
    """Files of counters that an answer does not rest on, sorted, and the command that would use them."""

    files: tuple[str, ...]
    command: str

    def in_words(self) -> str:
        """Return the first files, and how many there are."""
        more = len(self.files) - BESIDE_SHOWN
        return ", ".join(self.files[:BESIDE_SHOWN]) + (f" and {more} more" if more > 0 else "")

    @property
    def quality(self) -> Quality:
        """The row of an answer that does not rest on these files."""
        what = f"{self.in_words()}: not read; `{self.command}` holds them against this answer"
        return Quality("counters_beside", None, len(self.files), what)


def unread_counters(inputs: Inputs, read: Collection[str] = ()) -> Unread | None:
    """Return the files of counters and kernel logs among and beside the local files of `inputs`; None without any.

    read: files that the answer rests on. Beside a named file are those in its folder. At most MAX_BESIDE files are
    looked at; one that cannot be read is left out. Nothing is raised: this is a hint.
    """
    named = listed(inputs)
    try:
        found = find_everything([text for text in named if not is_url(text)])
    except TracekitError:
        return None
    folders = {Path(label).parent for label in found.named}
    labels = {s.label for s in found.sources} | {str(p) for f in folders for p in _files_in(f)}
    looked = [label for label in sorted(labels - set(read)) if _TRACE not in Path(label).name][:MAX_BESIDE]
    files = tuple(label for label in looked if _holds_counters(label))
    if not files:
        return None
    given = named
    if len(found.named) > BESIDE_SHOWN:
        given = list(dict.fromkeys(str(Path(t).parent) if t in found.named else t for t in named))
    within = [Path(text) for text in given]
    more = [f for f in files if not any(place in (Path(f), *Path(f).parents) for place in within)]
    return Unread(
        files, shlex.join(["tracekit", "triage", *map(without_secrets, given), *more[:BESIDE_SHOWN]])
    )


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are not hidden; none where it cannot be read."""
    try:
        yield from (p for p in folder.iterdir() if not p.name.startswith(".") and p.is_file())
    except OSError:
        return


def _holds_counters(label: str) -> bool:
    """Whether a file holds counters, or is a log of a kernel with an error of a GPU; not where it cannot be read."""
    try:
        source = Source(label, label, Path(label).stat().st_size)
        form = form_of(source)
        if form == "text" and source.size <= MAX_KERNEL_LOG:
            return _XID in Path(label).read_bytes() or _XID in head_of(source)
    except (OSError, ValueError):
        return False
    return form == "counters"
