"""What `tracekit whatif --to-mesh` is refused for, and what the refusals advise."""

import tracekit
from tests.advice.register import calls, case
from tests.simulate.case import setup_of, written
from tests.what_if.tables import ingested, replicas
from tracekit.analysis.questions.answer import answer
from tracekit.analysis.questions.layout_costs import Costs
from tracekit.analysis.questions.layouts import check, parse_layout

calls("is not predicted; leave it out", parse_layout, "dp=2,ep=2", "dp=2")


def on(text, **recorded):
    """Check a layout against a recorded mesh with four micro-batches."""
    costs = Costs({"tp": 1, "cp": 1, "pp": 1, "dp": 1, **recorded}, 4, 0.0, (), {})
    return check(costs, parse_layout(text))


@case("so its traces do not show")
def _(_folder, _patch):
    return lambda: on("cp=4,dp=2", dp=2), lambda: on("cp=4,dp=2", cp=2, dp=2)


@case("cannot be shared evenly by dp=")
def _(_folder, _patch):
    return lambda: on("pp=2,dp=3", pp=2, dp=2), lambda: on("pp=2,dp=4", pp=2, dp=2)


def asked(folder, text, mesh, *, ranks=None, **how):
    """Predict a layout from the traces of a simulated job."""
    setup, config = setup_of(mesh, steps=2, **{"tables": {"model": {"layers": 4}}, **how})
    written(folder, setup, config, ranks=ranks)
    return answer(tracekit.load([str(folder / "trace")]), layouts=(text,))


@case("no whole step of stage")
def _(folder, _patch):
    mesh = {"pp": 2, "dp": 2}
    return (
        lambda: asked(folder / "a", "dp=4", mesh, ranks=[0, 2]),
        lambda: asked(folder / "b", "dp=4", mesh),
    )


@case("the last stage sends to the first")
def _(folder, _patch):
    mesh = {"pp": 4, "dp": 2}
    interleaved = {"schedule": "interleaved", "virtual": 2, "tables": {"model": {"layers": 8}}}
    return (
        lambda: asked(folder / "a", "pp=2,dp=4", mesh, **interleaved),
        lambda: asked(folder / "b", "pp=2,dp=4", mesh),
    )


@case("gather weights or sum gradients with every micro-batch")
def _(folder, _patch):
    return (
        lambda: asked(folder / "a", "dp=2", {"dp": 4, "zero": 3}),
        lambda: asked(folder / "b", "dp=2", {"dp": 4}),
    )


@case("does not predict jobs with experts")
def _(folder, _patch):
    model = {"layers": 4, "experts": 8, "preset": "8x7b"}

    def fixed():
        asked(folder / "b", "dp=2", {"dp": 4})
        return answer(tracekit.load([str(folder / "b" / "trace")]), ("axis=dp",))

    return lambda: asked(folder / "a", "dp=2", {"dp": 4, "ep": 2}, tables={"model": model}), fixed


@case("an operation table does not show transfers")
def _(folder, _patch):
    table = ingested(folder, replicas([1.0, 1.0]))
    return lambda: answer(table, layouts=("dp=1",)), lambda: asked(folder / "a", "dp=2", {"dp": 4})
