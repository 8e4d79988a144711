"""Every scheme the program knows, one entry each: generators, configuration, commands, docs and tests read it here.

A *scheme* is a recipe with a name; a `Schedule` is the table that it makes for given sizes. The recipes are
functions in `one_way`, `bidirectional`, `asynchronous` and `zero_bubble`. A new scheme is one function and one
entry in `SCHEMES`; tests/schedule compares docs/schedules.md with the entries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from reftrain.schedule.actions import Schedule
from reftrain.schedule.asynchronous import pipedream, pipedream_2bw
from reftrain.schedule.bidirectional import chimera, gems
from reftrain.schedule.one_way import afab, breadth_first, flexible, gpipe, interleaved, one_f_one_b
from reftrain.schedule.spec import ScheduleSpec
from reftrain.schedule.zero_bubble import dualpipe_v, zb_h1


@dataclass(frozen=True)
class Scheme:
    """One scheme and its properties.

    `build` makes the table and raises `ScheduleError` for sizes that the scheme cannot take. `sizes` says in words
    which it takes, `paper` where it is defined. `options` names the fields of `ScheduleSpec` that it takes beside
    ranks and micro-batches. `default_virtual` is the number of virtual stages of a rank where none is given.
    With `checked_by_config` a configuration builds the table to see whether the scheme takes its sizes; the
    flexible schemes take all sizes, and their tables are large.
    """

    name: str
    build: Callable[[ScheduleSpec], Schedule]
    sizes: str
    paper: str
    options: frozenset[str] = frozenset()
    default_virtual: int = 1
    synchronous: bool = True
    bidirectional: bool = False
    splits_backward: bool = False
    checked_by_config: bool = True

    @property
    def whole_backward(self) -> bool:
        """Whether each stage has one owner, a backward is one piece, and one optimiser step ends the table."""
        return self.synchronous and not self.bidirectional and not self.splits_backward

    @property
    def kind(self) -> str:
        """Its properties in words, as docs/schedules.md lists them; empty for a plain synchronous scheme."""
        words = {
            "asynchronous": not self.synchronous,
            "bidirectional": self.bidirectional,
            "backwards in two parts": self.splits_backward,
        }
        return ", ".join(word for word, holds in words.items() if holds)


_VIRTUAL: Final = frozenset({"virtual"})
_ROUNDS: Final = frozenset({"virtual", "consecutive"})
_STEPS: Final = frozenset({"steps"})
_LLAMA_3: Final = "Scaling Llama 3 Training, ISCA'25"

_ENTRIES: Final = (
    Scheme("gpipe", gpipe, "any p, m", "GPipe, Huang et al. 2019"),
    Scheme("1f1b", one_f_one_b, "any p, m", "DAPPLE, Fan et al. 2021"),
    Scheme("interleaved", interleaved, "v ≥ 2, m a multiple of p", "Narayanan et al. 2021", _VIRTUAL, 2),
    Scheme(
        "flexible",
        flexible,
        "any p, v, m, k; k < p is all-forward-all-backward",
        _LLAMA_3,
        _ROUNDS,
        checked_by_config=False,
    ),
    Scheme("breadth_first", breadth_first, "any p, v, m", "Lamy-Poirier 2022", _VIRTUAL),
    Scheme("afab", afab, "any p, v, m, k", _LLAMA_3, _ROUNDS, checked_by_config=False),
    Scheme("gems", gems, "p ≥ 2, any m", "Jain et al. 2020", bidirectional=True),
    Scheme("pipedream", pipedream, "any p, m", "Narayanan et al. 2019", _STEPS, synchronous=False),
    Scheme("pipedream_2bw", pipedream_2bw, "m ≥ p", "Narayanan et al. 2021", _STEPS, synchronous=False),
    Scheme(
        "chimera",
        chimera,
        "even p, any m, 2f pipelines with f dividing p/2, three concatenations",
        "Li and Hoefler 2021",
        frozenset({"pipelines", "concatenation"}),
        bidirectional=True,
    ),
    Scheme("zb_h1", zb_h1, "any p, m", "Qi et al. 2023", splits_backward=True),
    Scheme(
        "dualpipe_v",
        dualpipe_v,
        "v = 2, m ≥ 2p",
        "DeepSeek-V3 2024, cut in half",
        _VIRTUAL,
        2,
        splits_backward=True,
    ),
)
SCHEMES: Final[dict[str, Scheme]] = {scheme.name: scheme for scheme in _ENTRIES}
"""All schemes by name, in the order in which errors and help list them."""


def default_virtual(name: str) -> int:
    """Virtual stages a rank where none is given; 1 for a name that is no scheme."""
    return SCHEMES[name].default_virtual if name in SCHEMES else 1
