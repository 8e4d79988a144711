"""The command `tracekit open`: the trace of an answer, lent once to the viewer in a browser."""

import webbrowser

import click

from tracekit.analysis.slowrank.analyse import illustrated
from tracekit.installation import check_extra
from tracekit.report.perfetto import slowrank_trace

from .. import options
from ..source import Source, source
from ..viewer import lent

_LOOK_S = 0.5


@click.command("open")
@options.cut()
@click.option("--no-browser", is_flag=True, help="Print the address only, for a browser elsewhere.")
@source()
def open_trace(source: Source, cut: options.Cut, no_browser: bool) -> int:
    """Open finding and evidence in ui.perfetto.dev: serve the trace to the browser once, then exit.

    Nothing is uploaded: the viewer reads the trace from this machine, which listens on 127.0.0.1:9001 until it has.
    TRACES are as for `tracekit slowrank`.

    \b
    tracekit open traces/
    tracekit open run/ --no-browser
    """
    check_extra("perfetto", "a trace for Perfetto")
    with source.analysed() as (run, progress):
        trace = slowrank_trace(*illustrated(run, cut.mesh, cut.order, cut.steps, progress))
    with lent(trace) as (address, fetched):
        click.echo(address)
        if not no_browser:
            webbrowser.open(address)
        while not fetched.wait(_LOOK_S):  # an endless wait may miss a signal that comes right before it
            pass
    return 0
