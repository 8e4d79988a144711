"""Answers as metrics of Prometheus, for the text-file collector of a node exporter: times in seconds."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, get_args

from tracekit.findings import HangFinding, SlowRankFinding
from tracekit.findings.hang import HangVerdict
from tracekit.findings.shared import RankCoverage
from tracekit.findings.slowrank import Suspect, Verdict
from tracekit.text import plain

if TYPE_CHECKING:
    pass

_MS: Final = 1e-3


def slowrank_metrics(finding: SlowRankFinding) -> str:
    """Return the finding as metrics; an unknown interval has no metric."""
    metrics = _Metrics("slowrank")
    metrics.verdict(get_args(Verdict), finding.verdict)
    metrics.ranks(finding.ranks)
    metrics.one("step_seconds", "Mean time of a step as recorded.", finding.what_if.step_ms * _MS)
    typical = finding.what_if.without_suspects_ms * _MS
    metrics.one("step_without_suspects_seconds", "Mean time of a step with all suspects typical.", typical)
    metrics.one(
        "slowdown_ratio", "A step as recorded over one without the suspects.", finding.what_if.slowdown
    )
    metrics.prices("suspect", "a rank that is named", finding.suspects)
    metrics.prices("candidate", "a rank that may be to blame (the answer is open)", finding.candidates)
    shares = dict(finding.coverage.by_axis)
    if finding.coverage.matched is not None:
        shares["all"] = finding.coverage.matched
    meaning = "Share of exposed communication that was matched with all members."
    metrics.each("matched_ratio", meaning, ("axis",), [((axis,), share) for axis, share in shares.items()])
    return metrics.text()


def hang_metrics(finding: HangFinding) -> str:
    """Return the finding as metrics."""
    metrics = _Metrics("hang")
    metrics.verdict(get_args(HangVerdict), finding.verdict)
    metrics.ranks(finding.ranks)
    culprits = [((str(c.rank), plain(c.host or ""), c.kind), 1.0) for c in finding.culprits]
    metrics.each("culprit", "1 for a rank that made the others wait.", ("rank", "host", "kind"), culprits)
    metrics.one("victims", "Ranks that wait for a culprit.", len(finding.victims))
    return metrics.text()


class _Metrics:
    """The metrics of one command; names begin with `tracekit_` and the command."""

    def __init__(self, command: str) -> None:
        from prometheus_client import CollectorRegistry

        self._registry: CollectorRegistry = CollectorRegistry()
        self._command = command

    def one(self, name: str, description: str, value: float) -> None:
        """Add a metric without labels."""
        self.each(name, description, (), [((), value)])

    def each(
        self,
        name: str,
        description: str,
        labels: Sequence[str],
        values: Iterable[tuple[Sequence[str], float]],
    ) -> None:
        """Add a metric with a value for each set of labels."""
        from prometheus_client import Gauge

        gauge = Gauge(f"tracekit_{self._command}_{name}", description, labels, registry=self._registry)
        for key, value in values:
            (gauge.labels(*key) if labels else gauge).set(value)

    def verdict(self, verdicts: Collection[str], given: str) -> None:
        """Add 1 for the verdict of the finding, 0 for each other verdict."""
        values = [((verdict,), float(verdict == given)) for verdict in verdicts]
        self.each("verdict", "1 for the verdict of the answer.", ("verdict",), values)

    def ranks(self, ranks: RankCoverage) -> None:
        """Add the number of ranks of the job, and the number of ranks read."""
        values = [(("expected",), float(ranks.expected)), (("read",), float(ranks.read))]
        self.each("ranks", "Ranks of the job, and ranks that were read.", ("state",), values)

    def prices(self, name: str, whom: str, suspects: Collection[Suspect]) -> None:
        """Add the price of each suspect a step, with its bounds where they are known."""
        values = []
        for s in suspects:
            bounds = {"mean": s.lost_ms_per_step, "low": s.lost_ms_low, "high": s.lost_ms_high}
            for bound, ms in bounds.items():
                if ms is not None:
                    values.append(((str(s.rank), plain(s.host or ""), s.cause, bound), ms * _MS))
        meaning = f"Time that a step loses by {whom}: mean, and bounds."
        self.each(f"{name}_lost_seconds", meaning, ("rank", "host", "cause", "bound"), values)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()
