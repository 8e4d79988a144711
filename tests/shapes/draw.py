"""Which case a seed is."""

from tests.shapes import broad, newer, partly, pipelines, targets
from tests.shapes.case import Case

FAMILIES = (
    (partly.FIRST, partly.partly),
    (newer.FIRST, newer.newer),
    (targets.FIRST, targets.targets),
    (pipelines.FIRST, pipelines.pipelines),
    (0, broad.broad),
)
"""From which seed on who draws."""
MEASURED = (*range(105), *range(pipelines.FIRST, 1060), *range(targets.FIRST, 2084))
"""Seeds of the first figures in docs/localise_benchmark.md."""


def drawn_case(seed: int) -> Case:
    """The case of a seed."""
    return next(draw(seed) for first, draw in FAMILIES if seed >= first)
