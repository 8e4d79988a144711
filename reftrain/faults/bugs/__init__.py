"""Planted bugs: a run that computes something wrong on purpose, to be found by comparing its numbers.

`read_bugs` reads `P02:layer=1` from the run's faults, `plant` patches this process while the run lasts. The
catalogue follows the classes of real bugs by axis: `tensor`, `vocabulary`, `context`, `pipeline`, `data`, `experts`,
`images`, `numeric`, `spmd`.
"""

import difflib
import re
from contextlib import AbstractContextManager

from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.faults.bugs.bug import CATALOGUE, Bug, BugSpec, Place, parse_value, patched

BUG_NAME = re.compile(r"^[A-Z]\d{2}$")


def is_bug(text: str) -> bool:
    """Whether a fault as users write it means a planted bug (P02) and not a slow or stuck rank."""
    return bool(BUG_NAME.match(text.strip().partition(":")[0]))


def catalogue() -> dict[str, Bug]:
    """All bugs by name, sorted; needs torch."""
    from reftrain.faults.bugs import (  # noqa: F401 - they enter their bugs
        context,
        data,
        experts,
        images,
        numeric,
        pipeline,
        spmd,
        tensor,
        vocabulary,
    )

    return dict(sorted(CATALOGUE.items()))


def read_bugs(config: RunConfig) -> list[BugSpec]:
    """Read the bugs among the run's faults.

    Raises `ConfigError` for an unknown one, a wrong field, or a layout that cannot show it.
    """
    return [parse_bug(text, config) for text in config.evidence.faults if is_bug(text)]


def parse_bug(text: str, config: RunConfig) -> BugSpec:
    """Read one bug, `P02` or `P02:layer=1,of=w2`, for this run; raises as `read_bugs`."""
    name, _, rest = text.strip().partition(":")
    known = catalogue()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        raise ConfigError(
            "fault", f"no bug '{name}'", f"near it are {', '.join(near)}; `reftrain faults` lists all"
        )
    bug = known[name]
    values = {field: spec.default for field, spec in bug.fields.items()}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        field, equals, value = (p.strip() for p in part.partition("="))
        if not equals or field not in bug.fields:
            takes = ", ".join(bug.fields) or "no fields"
            raise ConfigError(
                f"fault.{field}", f"{name} has no such field", f"it takes {takes}, as name=value"
            )
        values[field] = parse_value(f"fault.{field}", bug.fields[field], value)
    reason = bug.refusal(config, values)
    if reason:
        raise ConfigError(
            "fault", f"{name} ({bug.what}) cannot show here: {reason}", "change the layout or the bug"
        )
    return BugSpec(bug, values)


def plant(config: RunConfig, rank: int) -> AbstractContextManager[None]:
    """Plant the run's bugs in this rank's process while the block runs."""
    specs = read_bugs(config)
    if not specs:
        return patched([], Place(config, rank, {}))
    from reftrain.rank.mesh import coordinates

    return patched(specs, Place(config, rank, coordinates(rank, config.mesh.sizes, config.mesh.order)))
