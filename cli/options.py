"""Options that commands share, parsed into what the library takes."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click

from tracekit.installation import check_extra
from tracekit.mesh import parse_mesh, parse_order
from tracekit.mesh.hardware import Hardware, Way
from tracekit.page.shell import About
from tracekit.placement import HostList, read_hosts
from tracekit.text import whole_number, without_secrets
from tracekit.thresholds.ingest import MAX_STEP
from tracekit.units import NS_PER_US

from .completion import machines as known_machines
from .completion import one_of, several_of
from .output import JSON, MARKDOWN, Form, check_writable, emit
from .packed import Decorator, packed
from .settings import ARGUMENTS, from_outside

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
        begin, end = whole_number(first, MAX_STEP), whole_number(last, MAX_STEP)
        if (first and begin is None) or (last and end is None):
            raise click.BadParameter(
                f"{part[:40]!r} is not a range of steps from 0 to {MAX_STEP}; write 3:8, 5, :4 or 4:"
            )
        end = end if colon else (begin or 0) + 1
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
            raise click.BadParameter(
                f"{unknown[0]!r} is not a verdict; choose from {', '.join(verdicts)}, any"
            )
        return kinds

    return parse


@dataclass(frozen=True)
class Axes:
    """The mesh given on the command line: its sizes and its order; None means inferred from the groups."""

    mesh: dict[str, int] | None
    order: tuple[str, ...] | None


@dataclass(frozen=True)
class Cut(Axes):
    """Which mesh the job runs on, and which steps are looked at; None is all."""

    steps: list[StepRange] | None


@dataclass(frozen=True)
class Answer:
    """Forms of an answer: text with all evidence if `verbose`, and files or stdout (`-`) for the others."""

    json_to: str | None
    markdown_to: str | None
    verbose: bool

    def emit(self, text: str, document: Form, markdown: Form, *others: tuple[Form, str | None]) -> None:
        """Print the text, and write the forms that were asked for."""
        emit(text, document, self.json_to, (markdown, self.markdown_to), *others)


_AXES = (
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
        help="Axes from inner to outer, if not in the order of --mesh.",
    ),
)


def axes() -> Decorator:
    """Decorate a command with the options that say which mesh the job runs on, as the `Axes` called `axes`."""
    return packed("axes", Axes, *_AXES)


def cut() -> Decorator:
    """Decorate a command with the options that say what of the job it looks at, as the `Cut` called `cut`."""
    option = click.option(
        "--steps",
        callback=steps,
        metavar="3:8",
        help="Profiler steps to analyse (3 to 7); all if left out.",
    )
    return packed("cut", Cut, *_AXES, option)


def hosts() -> Decorator:
    """Decorate a command with the option that names the file of hosts."""
    return click.option(
        "--hosts",
        callback=_hosts,
        metavar="FILE",
        help="Where ranks run: a hostfile (node01 slots=8) or a table (rank,host,switch,rail).",
    )


def _hosts(_ctx: click.Context, _param: click.Parameter, text: str | None) -> HostList | None:
    """Read the file before any work."""
    return None if text is None else read_hosts(text)


@dataclass(frozen=True)
class Machines:
    """The machines of a job: the file of hosts, and what their links reach."""

    hosts: HostList | None
    hardware: Hardware | None

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of the library's functions."""
        return {"hosts": self.hosts, "hardware": self.hardware}


def machines() -> Decorator:
    """Decorate a command with the options that say where ranks run and what the links there reach, as `machines`."""
    option = click.option(
        "--hardware",
        callback=_hardware,
        metavar="NAME|FILE",
        shell_complete=one_of(known_machines),
        help="The links of the job's machines: a machine of reftrain plan, or its .toml file.",
    )
    return packed("machines", Machines, hosts(), option)


def _hardware(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Hardware | None:
    """Return the links of known or described hardware, with latencies in ns; read before any work."""
    if text is None:
        return None
    from reftrain.cost.hardware import Link, load_hardware

    def way(link: Link) -> Way:
        return Way(link.latency_us * NS_PER_US, link.gb_s * link.efficiency)

    made = load_hardware(text)
    return Hardware(made.name, way(made.node), way(made.network), asdict(made.operations))


def failing(verdicts: Sequence[str]) -> Decorator:
    """Decorate a command with the option that fails on verdicts."""
    return click.option(
        "--fail-on",
        callback=fail_on(verdicts),
        shell_complete=several_of((*verdicts, "any")),
        metavar="VERDICTS",
        help="Exit 1 if the verdict is among these (joined by commas, or any); 4 if undecided.",
    )


def html() -> Decorator:
    """Decorate a command with the option that writes its answer as one page."""
    return click.option(
        "--html", "html_to", callback=_page, metavar="FILE", help="Write one offline HTML page."
    )


def _page(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """Check `--html` before any work: the page is a file, and its packages are installed."""
    if text is None:
        return None
    if text == "-":
        raise click.BadParameter("a page is not text for a terminal; name a file")
    check_extra("report", "--html")
    check_writable(text)
    return text


_FORMS: Final = frozenset({
    "html_to", "json_to", "markdown_to", "prometheus_to", "perfetto_to",
    "verbose", "quiet", "fail_on", "jobs", "engine", "address",
})  # fmt: skip
"""Options that say how an answer is made or written, and not which one it is."""


def page_foot(inputs: Sequence[object | None], recorded: str | None = None) -> About:
    """Return what the foot of a page says of the command that runs: without its forms, and without secrets in URLs."""
    ctx = click.get_current_context()
    written = list(ctx.meta.get(ARGUMENTS, ()))
    values, _, order = ctx.command.make_parser(ctx).parse_args(written)
    words = [
        word
        for parameter in sorted(dict.fromkeys(order), key=lambda p: isinstance(p, click.Option))
        if parameter.name not in _FORMS
        for word in _words(parameter, values[str(parameter.name)])
    ]
    return About(
        shlex.join([*ctx.command_path.split(), *words]),
        tuple(without_secrets(str(given)) for given in inputs if given is not None),
        recorded,
        tuple(from_outside(ctx)),
    )


def _words(parameter: click.Parameter, given: object) -> list[str]:
    """Return a parameter as it is written on a command line: its name before each value, unless it has none."""
    if not isinstance(parameter, click.Option):
        return [without_secrets(str(one)) for one in (given if isinstance(given, tuple) else (given,))]
    if parameter.is_flag:
        return [parameter.opts[0]]
    words: list[str] = []
    for one in given if isinstance(given, list) else [given]:
        parts = one if isinstance(one, tuple) else (one,)
        words += [parameter.opts[0], *(without_secrets(str(part)) for part in parts)]
    return words


def prometheus() -> Decorator:
    """Decorate a command with the option that writes its answer as metrics."""
    return click.option(
        "--prometheus",
        "prometheus_to",
        callback=_metrics,
        metavar="FILE",
        help="Write metrics for a Prometheus text-file collector.",
    )


def _metrics(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """Check `--prometheus` before any work: the file can be written, and its package is installed."""
    if text is not None:
        check_extra("prometheus", "--prometheus")
        check_writable(text)
    return text


def perfetto() -> Decorator:
    """Decorate a command with the option that writes its answer as a trace of Perfetto."""
    return click.option(
        "--perfetto",
        "perfetto_to",
        callback=_trace,
        metavar="FILE",
        help="Write finding and evidence as a trace for ui.perfetto.dev.",
    )


def _trace(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """Check `--perfetto` before any work: the trace is a file, and its package is installed."""
    if text is None:
        return None
    if text == "-":
        raise click.BadParameter("a trace is not text for a terminal; name a file")
    check_extra("perfetto", "--perfetto")
    check_writable(text)
    return text


def answer() -> Decorator:
    """Decorate a command with the forms of its answer, as the `Answer` called `answer`."""
    verbose = click.option("--verbose", is_flag=True, help="All evidence, quality rows and assumptions.")
    return packed("answer", Answer, JSON, MARKDOWN, verbose)
