"""The figures of two papers beside ours, by exact times of our own tables: `python -m studies.schedules`.

The tables are 2 and 3 of "Chimera" (SC'21) at f = 1, b = 2, p2p = 0, and the bubbles of "Scaling Llama 3 Training"
(ISCA'25). `schedule_formulas` has the papers' formulas.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from reftrain.papers.schedule_formulas import PUBLISHED, Published, Span, with_middle
from reftrain.schedule.costs import Costs
from reftrain.schedule.evaluation import Evaluation, evaluate
from reftrain.schedule.generators import generate
from reftrain.schedule.spec import ScheduleSpec

STAGES = (4, 8, 16, 32)
MULTIPLES = (1, 2, 4)


@dataclass(frozen=True)
class Row:
    """One scheme at p and m: bubbles as shares of the time, memory in multiples of one stage's.

    `paper` is the formula's bubble, `ours` that of our table, `derived` the closed form that docs/schedules.md
    derives for ours. Spans are (least, greatest) over the ranks.
    """

    scheme: str
    stages: int
    micro_batches: int
    paper: Fraction
    ours: Fraction
    derived: Fraction
    weights: tuple[Span, Span]
    activations: tuple[Span, Span]

    @property
    def points(self) -> float:
        """Percentage points by which ours exceeds the paper's formula."""
        return float(100 * (self.ours - self.paper))


def spread(values: tuple[int, ...]) -> Span:
    """Least and greatest."""
    return min(values), max(values)


def row(scheme: Published, p: int, m: int) -> Row:
    """Time one scheme at f = 1, b = 2, p2p = 0."""
    spec = ScheduleSpec(scheme.name, p, m, concatenation=scheme.concatenation)
    got = evaluate(generate(spec), Costs(), spec)
    paper = with_middle if scheme.name == "chimera" and m == p else scheme.paper
    return Row(
        scheme.label,
        p,
        m,
        paper(p, m),
        got.steady.bubble_ratio,
        scheme.derived(p, m),
        (scheme.weights(p, m), spread(tuple(h.weights for h in got.peaks))),
        (scheme.activations(p, m), spread(tuple(h.activations for h in got.peaks))),
    )


def chimera_rows() -> Iterator[Row]:
    """Chimera's table 2 for all p and m."""
    for p in STAGES:
        for multiple in MULTIPLES:
            for scheme in PUBLISHED:
                if scheme.concatenation == "direct" or multiple > 1:
                    yield row(scheme, p, multiple * p)


def pipelines_rows() -> Iterator[Row]:
    """Chimera's table 3: 2f pipelines in equal slots (f = b = 1) at m = p; idle 2(p/(2f)-1) slots a rank."""
    for p in STAGES:
        for f in (f for f in range(1, p // 2 + 1) if p // 2 % f == 0):
            spec = ScheduleSpec("chimera", p, p, pipelines=2 * f)
            got = evaluate(generate(spec), Costs(b=Fraction(1)), spec)
            paper = Fraction(p // f - 2, 2 * p + p // f - 2)
            weights = spread(tuple(h.weights for h in got.peaks))
            held = spread(tuple(h.activations for h in got.peaks))
            yield Row(
                f"chimera, {2 * f} pipelines",
                p,
                p,
                paper,
                got.steady.bubble_ratio,
                paper,
                ((2 * f, 2 * f), weights),
                ((held[0], p), held),
            )


@dataclass(frozen=True)
class LlamaRow:
    """Bubble over compute of the flexible schedule, (p-1)/(m·v) in the paper."""

    stages: int
    virtual: int
    micro_batches: int
    consecutive: int
    paper: Fraction
    ours: Fraction
    activations: int


LLAMA_SIZES = (
    (16, 8, 16, 16),
    (16, 8, 32, 16),
    (16, 8, 32, 32),
    (4, 2, 8, 4),
    (4, 2, 12, 6),
    (8, 4, 24, 8),
    (8, 4, 24, 12),
)


def llama_rows() -> Iterator[LlamaRow]:
    """Sizes with k | m and k >= p, the paper's p = 16, v = 8 first."""
    for p, v, m, k in LLAMA_SIZES:
        got = llama(p, v, m, k)
        most = max(h.activations for h in got.peaks)
        yield LlamaRow(p, v, m, k, Fraction(p - 1, m * v), got.steady.bubble_over_compute, most)


def llama(p: int, v: int, m: int, k: int) -> Evaluation:
    """Time the flexible schedule at f = 1, b = 2, p2p = 0."""
    spec = ScheduleSpec("flexible", p, m, virtual=v, consecutive=k)
    return evaluate(generate(spec), Costs(), spec)


def show_span(span: Span) -> str:
    """Write `2` or `3 to 4`."""
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def table(rows: Iterator[Row]) -> Iterator[str]:
    """Rows as Markdown."""
    memory = "weights: paper | ours | activations: paper | ours"
    yield f"| scheme | p | m | bubble: paper | ours | points | derived | {memory} |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for r in rows:
        exact = "exact" if r.ours == r.paper else f"{r.points:+.2f}"
        derived = "exact" if r.ours == r.derived else f"{float(r.derived):.2%}"
        spans = " | ".join(show_span(s) for s in (*r.weights, *r.activations))
        yield (
            f"| {r.scheme} | {r.stages} | {r.micro_batches} | {float(r.paper):.2%} | {float(r.ours):.2%} "
            f"| {exact} | {derived} | {spans} |"
        )


def llama_table() -> Iterator[str]:
    """Llama 3's bubbles as Markdown."""
    yield "| p | v | m | k | (p-1)/(m·v) | ours | | activations on the first rank |"
    yield "|---|---|---|---|---|---|---|---|"
    for r in llama_rows():
        exact = "exact" if r.ours == r.paper else f"{float(100 * (r.ours - r.paper)):+.2f}"
        yield (
            f"| {r.stages} | {r.virtual} | {r.micro_batches} | {r.consecutive} | {float(r.paper):.2%} "
            f"| {float(r.ours):.2%} | {exact} | {r.activations} |"
        )


def main() -> None:
    """Print all tables as Markdown."""
    sections = (
        ("Chimera, table 2: f = 1, b = 2, p2p = 0", table(chimera_rows())),
        ("Chimera with 2f pipelines: equal slots, f = b = 1", table(pipelines_rows())),
        ("Llama 3: bubble over compute", llama_table()),
    )
    for heading, lines in sections:
        print(f"### {heading}\n")  # noqa: T201 - this is the command
        for line in lines:
            print(line, flush=True)  # noqa: T201 - this is the command
        print()  # noqa: T201 - this is the command


if __name__ == "__main__":
    main()
