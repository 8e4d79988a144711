"""DataFrames and other tools that are not installed, and what the refusals advise."""

from types import SimpleNamespace

from tests.advice.register import case
from tracekit import interop
from tracekit.errors import MissingExtraError
from tracekit.findings import HangFinding, RankCoverage, shared

NOBODY = HangFinding(RankCoverage(2, 2), None, "none", "nobody waits", (), None, ())


@case("pip install pandas, or use to_arrow")
def _no_pandas(_folder, patch):
    patch.setattr(shared, "find_spec", lambda _: None)
    return NOBODY.to_pandas, NOBODY.to_arrow


@case("no rank of the run has an event")
def _no_events(_folder, patch):
    patch.setattr(interop, "check_extra", lambda *_: None)
    runs = {events: SimpleNamespace(ranks=[SimpleNamespace(rank=0, events=events)]) for events in (0, 1)}

    def reads():
        try:
            interop.hta(runs[1])
        except (AttributeError, MissingExtraError):
            return  # beyond the check: HTA is absent, or asks the run for its events

    return lambda: interop.hta(runs[0]), reads
