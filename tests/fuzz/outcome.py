"""What a user sees of one command on one input, told in a word: an answer, a refusal, or a fault of ours."""

import io
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from tracekit_cli import exit_codes
from tracekit_cli.program import _sentence

DOCUMENTED = {exit_codes.OK, exit_codes.FAILED_ON, exit_codes.USAGE, exit_codes.INPUT, exit_codes.UNDECIDED}
KEPT = tempfile.gettempdir()
"""Folder of what inputs are made from: a temporary folder outside those of single inputs, on the same disk."""
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


SHORT_WORK = 20_000
"""Runs of a layer that a simulation may have: honest work of a minute is no hang."""


class FaultError(Exception):
    """What no user may see."""


def in_this_process(
    tasks: Sequence[Any], make_handler: Any, jobs: int, limits: Any, **_: Any
) -> Iterator[Any]:
    """`tracekit.workers.do_all` without workers: the fuzzer's own worker bounds memory and time."""
    handler = make_handler()
    for index, task in enumerate(tasks):
        try:
            result = handler(task)
        except MemoryError:  # a pickle may ask for any amount; its worker would have answered so
            result = MemoryError(limits.big)
        yield index, result


def without_workers(tasks: Sequence[Any], make_handler: Any, folder: Path, limits: Any, _: Any) -> Any:
    """The engine of `in_this_process`."""
    return in_this_process(tasks, lambda: make_handler(folder), 1, limits)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Read files in this process, and keep temporary files in `folder`."""
    with (
        patch("tracekit.ingest.reading.on_this_machine", lambda *_: without_workers),
        patch("tracekit.dumps.load.do_all", in_this_process),
        patch("reftrain.simulate.runner.MOST_LAYER_RUNS", SHORT_WORK),
        patch("tracekit.files.source.LEAST_EXPANDED", 1 << 22),
        patch.object(tempfile, "tempdir", str(folder)),
    ):
        yield


def outcome(command: click.Command, arguments: Sequence[str], root: Path) -> tuple[str, str]:
    """Run a command in this process: a word for its end, and its stdout.

    The word is "answered", "refused", or a fault: "exit 70", "escape" (control characters), "nameless" (the sentence
    names no file), "many lines", "warning".
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            code = command.main(args=list(arguments), prog_name="x", standalone_mode=False)
        except click.ClickException as error:
            code, said = exit_codes.of_error(error), error.format_message()
        except Exception as error:  # noqa: BLE001 (every end is counted)
            code = exit_codes.of_error(error)
            said = _sentence(error, code)
            if code == exit_codes.FAULT:
                return f"exit 70 {type(error).__name__} {_place(error)}", ""
        else:
            said = ""
    shown = out.getvalue() + err.getvalue()
    if (code or 0) not in DOCUMENTED:
        return f"exit {code}", ""
    if OBEYED.search(shown + said):
        return "escape", shown
    if code in {exit_codes.USAGE, exit_codes.INPUT} and said:
        if "\n" in said:
            return "many lines", said
        if str(root) not in said:
            return "nameless", said
        return "refused", said
    return "answered", out.getvalue()


def _place(error: BaseException) -> str:
    """File and line of ours at which an error was raised."""
    found, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if any(f"/{p}/" in name for p in ("tracekit", "numerics", "reftrain", "cli")):
            found = f"{Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
