"""Options that commands share, parsed into what the library takes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tracekit.mesh import parse_mesh, parse_order
from tracekit.report.html.page import check_installed

from .output import JSON, MARKDOWN, check_writable

Command = TypeVar("Command", bound=Callable[..., Any])
StepRange = tuple[int | None, int | None]


def mesh(_ctx: click.Context, _param: click.Parameter, text: str | None) -> dict[str, int] | None:
    """Parse `--mesh`."""
    return None if text is None else parse_mesh(text)


def order(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Parse `--order`."""
    return None if text is None else parse_order(text)


def steps(_ctx: click.Context, _param: click.Parameter, text: str | None) -> list[StepRange] | None:
    """`3:8` is steps 3 to 7, `5` is step 5, `:4` and `4:` are open; several are joined by commas."""
    if text is None:
        return None
    ranges: list[StepRange] = []
    for part in text.split(","):
        first, colon, last = (p.strip() for p in part.partition(":"))
        try:
            begin = int(first) if first else None
            end = (int(last) if last else None) if colon else (begin or 0) + 1
        except ValueError:
            raise click.BadParameter(f"{part!r} is no range of steps; write 3:8, 5, :4 or 4:") from None
        if not part.strip() or (begin is not None and end is not None and end <= begin):
            raise click.BadParameter(f"{part!r} is an empty range of steps; write 3:8 for steps 3 to 7")
        ranges.append((begin, end))
    return ranges


def fail_on(
    verdicts: Sequence[str],
) -> Callable[[click.Context, click.Parameter, str | None], frozenset[str]]:
    """Parse `--fail-on` against the verdicts of a command."""

    def parse(_ctx: click.Context, _param: click.Parameter, text: str | None) -> frozenset[str]:
        kinds = frozenset(k.strip() for k in (text or "").split(",") if k.strip())
        unknown = sorted(kinds - {*verdicts, "any"})
        if unknown:
            raise click.BadParameter(f"{unknown[0]!r} is no verdict; choose from {', '.join(verdicts)}, any")
        return kinds

    return parse


def job() -> Callable[[Command], Command]:
    """Decorate a command with the option that chooses among several jobs."""
    return click.option(
        "--job",
        type=click.IntRange(min=1),
        metavar="N",
        help="Which job to answer for, where the input holds several: the refusal numbers them.",
    )


def axes() -> Callable[[Command], Command]:
    """Decorate a command with the options that say which mesh the job runs on."""
    options = [
        click.option(
            "--mesh",
            callback=mesh,
            metavar="tp=8,cp=1,pp=16,dp=128",
            help="The mesh, inner to outer; inferred if left out.",
        ),
        click.option(
            "--order",
            callback=order,
            metavar="tp,cp,dp,pp",
            help="Axes inner to outer, where that is not as --mesh is written.",
        ),
    ]
    return _apply(options)


def cut() -> Callable[[Command], Command]:
    """Decorate a command with the options that say which mesh and which steps the traces show."""
    option = click.option(
        "--steps",
        callback=steps,
        metavar="3:8",
        help="Profiler steps to look at (3 to 7); all if left out.",
    )
    return lambda command: axes()(option(command))


def analysis(verdicts: Sequence[str]) -> Callable[[Command], Command]:
    """Decorate a command with the options of every analysis of traces that ends in a verdict."""
    option = click.option(
        "--fail-on",
        callback=fail_on(verdicts),
        metavar="VERDICTS",
        help="Exit 1 on these verdicts (commas, or any); 4 if undecided.",
    )
    return lambda command: cut()(option(command))


def html() -> Callable[[Command], Command]:
    """Decorate a command with the option that writes its answer as one page."""
    return click.option(
        "--html", "html_to", callback=_page, metavar="FILE", help="Write one offline HTML page."
    )


def _page(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """Check `--html` before any work: the page is a file, and its packages are installed."""
    if text is None:
        return None
    if text == "-":
        raise click.BadParameter("a page is no text for a terminal; name a file")
    check_installed()
    check_writable(Path(text))
    return text


def output() -> Callable[[Command], Command]:
    """Decorate a command with the options of every command that answers."""
    options = [
        JSON,
        MARKDOWN,
        click.option("--verbose", is_flag=True, help="All evidence, quality rows and assumptions."),
        click.option(
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help="Processes that read files; by the size of the input if left out.",
        ),
        click.option("--quiet", is_flag=True, help="No progress on stderr."),
    ]
    return _apply(options)


def _apply(options: Sequence[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
