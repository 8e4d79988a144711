"""Progress on stderr: a bar on a terminal, sparse lines in a log, nothing with --quiet or for short work."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tracekit.ingest import ProgressEvent

_SILENT_S = 2.0
_LOG_EVERY_S = 10.0


@contextmanager
def reading(*, quiet: bool) -> Iterator[Callable[[ProgressEvent], None]]:
    """Lend a callback that shows how far the reading of files is."""
    console = Console(stderr=True)
    if quiet:
        yield lambda _event: None
    elif console.is_terminal:
        columns = (
            TextColumn("reading {task.fields[files]}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("read", files="")

            def show(event: ProgressEvent) -> None:
                files = f"{event.done_files}/{event.total_files} files"
                bar.update(task, total=event.total_bytes, completed=event.done_bytes, files=files)

            yield show
    else:
        yield _logger(console)


def _logger(console: Console) -> Callable[[ProgressEvent], None]:
    begin = time.monotonic()
    last = [begin + _SILENT_S - _LOG_EVERY_S]

    def log(event: ProgressEvent) -> None:
        now = time.monotonic()
        if now - last[0] >= _LOG_EVERY_S:
            last[0] = now
            share = 100 * event.done_bytes / max(event.total_bytes, 1)
            files = f"{event.done_files}/{event.total_files} files"
            text = f"reading: {files}, {share:.0f} % of {event.total_bytes / 1e6:.0f} MB"
            console.print(text, markup=False, highlight=False)

    return log
