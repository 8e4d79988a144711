"""Progress on stderr: a bar on a terminal, sparse lines in a log, nothing with --quiet or for short work."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tracekit.ingest import ProgressEvent

_SILENT_S = 2.0
_LOG_EVERY_S = 10.0
_DRAW_EVERY_S = 0.1


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
        # no thread of its own: with threads the workers that read could not be forked
        with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
            task = bar.add_task("read", files="")
            drawn = [0.0]

            def show(event: ProgressEvent) -> None:
                files = event.note or f"{event.done_files}/{event.total_files} files"
                bar.update(task, total=event.total_bytes, completed=event.done_bytes, files=files)
                if event.note or time.monotonic() - drawn[0] >= _DRAW_EVERY_S:
                    bar.refresh()
                    drawn[0] = time.monotonic()

            yield show
    else:
        yield _logger(console)


class Comparing:
    """A callback for (how many are done, all of them), and one for the name of what follows."""

    def __init__(self, show: Callable[[int, int], None], enter: Callable[[str], None]) -> None:
        self._show, self.enter = show, enter

    def __call__(self, done: int, of: int) -> None:
        """Show how many are done."""
        self._show(done, of)


@contextmanager
def comparing(*, quiet: bool, what: str = "ranks") -> Iterator[Comparing]:
    """Lend a callback for (how many of `what` are read, all of them); what follows is shown by name and time."""
    console = Console(stderr=True)
    if quiet:
        yield Comparing(lambda _done, _of: None, lambda _stage: None)
    elif console.is_terminal:
        columns = (TextColumn("comparing {task.fields[ranks]}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("compare", ranks="")

            def show(done: int, of: int) -> None:
                bar.update(task, total=of + 1, completed=done, ranks=f"{done}/{of} {what}")

            yield Comparing(show, lambda stage: bar.update(task, ranks=stage))
    else:
        with _ticking(console, "comparing") as shown:
            yield Comparing(
                lambda done, of: shown.update(text=f"{done}/{of} {what}"),
                lambda stage: shown.update(text=stage),
            )


@contextmanager
def planning(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Lend a callback for (candidates looked at, all candidates) of a plan."""
    if quiet:
        yield lambda _done, _of: None
        return
    with _ticking(Console(stderr=True), "planning") as shown:
        yield lambda done, of: shown.update(text=f"{done}/{of} candidates")


@contextmanager
def simulating(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Lend a callback for what a simulation does now: the first is said at once, others with their time later."""
    if quiet:
        yield lambda _text: None
        return
    console = Console(stderr=True)
    with _ticking(console, "simulating") as shown:

        def now(text: str) -> None:
            if not shown["text"]:
                console.print(f"simulating {text}", markup=False, highlight=False)
            shown.update(text=text)

        yield now


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """Say now and then what takes so long, and for how long it has."""
    with _ticking(Console(stderr=True), doing):
        yield


@contextmanager
def _ticking(console: Console, doing: str) -> Iterator[dict[str, str]]:
    """Write a line now and then, from a thread, until the work is done; the text that it shows is lent."""
    shown, done, begin = {"text": ""}, threading.Event(), time.monotonic()

    def tick() -> None:
        wait = _SILENT_S
        while not done.wait(wait):
            parts = [part for part in (shown["text"], f"{time.monotonic() - begin:.0f} s") if part]
            console.print(f"{doing}: {', '.join(parts)}", markup=False, highlight=False)
            wait = _LOG_EVERY_S

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        done.set()
        thread.join()


def _logger(console: Console) -> Callable[[ProgressEvent], None]:
    begin = time.monotonic()
    last = [begin + _SILENT_S - _LOG_EVERY_S]

    def log(event: ProgressEvent) -> None:
        now = time.monotonic()
        if event.note:
            console.print(f"reading: {event.note}", markup=False, highlight=False)
        elif now - last[0] >= _LOG_EVERY_S:
            last[0] = now
            share = 100 * event.done_bytes / max(event.total_bytes, 1)
            files = f"{event.done_files}/{event.total_files} files"
            text = f"reading: {files}, {share:.0f} % of {event.total_bytes / 1e6:.0f} MB"
            console.print(text, markup=False, highlight=False)

    return log
