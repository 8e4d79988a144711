"""`python -m tests.interventions.simulated_layouts`: predicted steps of other meshes beside the simulator's.

Jobs of eight ranks on described H100s, sixteen micro-batches in all, every kernel in the traces.
"""

import statistics
import tempfile
from pathlib import Path

import tracekit
from tests.causes.cell import step_ms
from tests.causes.report import table
from tests.simulate.case import setup_of, written
from tracekit.analysis.questions.answer import answer
from tracekit.errors import UsageError
from tracekit.mesh import parse_mesh

RECORDED = ("tp=2,dp=4", "cp=2,dp=4", "pp=2,dp=4", "tp=2,pp=2,dp=2", "tp=2,cp=2,dp=2", "pp=4,dp=2")
WANTED = (
    "dp=8", "tp=4,dp=2", "tp=8", "cp=4,dp=2", "pp=4,dp=2", "pp=8", "tp=2,pp=4", "tp=4,pp=2", "tp=2,dp=4", "cp=2,dp=4",
    "pp=2,dp=4",
)  # fmt: skip
BATCHES, LAYERS = 16, 8


def setup(text):
    """Return the job on a mesh, and its configuration."""
    mesh = parse_mesh(text)
    small = {"steps": 3, "merge": False, "seed": 12, "tables": {"model": {"layers": LAYERS}}}
    return setup_of(mesh, micro_batches=BATCHES // mesh["dp"], **small)


def main() -> None:
    """Print a row a recorded mesh: predictions, how many lie in their interval, and the errors."""
    true = {text: step_ms(setup(text)[0]) for text in WANTED}
    rows, errors, inside = [], [], 0
    for recorded in RECORDED:
        job, config = setup(recorded)
        found = []
        with tempfile.TemporaryDirectory(prefix="layouts-") as folder:
            written(Path(folder), job, config, detail="kernels")
            run = tracekit.load([f"{folder}/trace"])
            for wanted in (w for w in WANTED if w != recorded):
                try:
                    one = answer(run, layouts=(wanted,)).answers[0]
                except UsageError:
                    continue
                found.append((wanted, one.without_ms / true[wanted] - 1))
                inside += one.without_ms_low <= true[wanted] <= one.without_ms_high
        errors += [abs(error) for _, error in found]
        rows.append((recorded, ", ".join(f"{wanted} {error:+.1%}" for wanted, error in found)))
    print(table(("recorded", "error of the predicted step"), rows))
    print(
        f"\n{len(errors)} predictions: median error {statistics.median(errors):.1%}, largest {max(errors):.1%}; ",
        end="",
    )
    print(f"{inside} true steps in the interval")


if __name__ == "__main__":
    main()
