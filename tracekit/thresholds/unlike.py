"""Bounds of `slowrank` for what no peer or other step shows: an only group, accidents; each with its reason."""

from typing import Final

FAST_BUS_GB_S: Final = 100.0
"""Bus bandwidth that only healthy links reach: 145 to 370 GB/s over NVLink, as much with one network card a GPU."""

SOLE_GROUP_SHARE: Final = 0.15
"""Share of a step that the only group could save at `FAST_BUS_GB_S`, from which a job is not called healthy unseen."""

FEW_LINKS: Final = 16
"""Channels of messages in a short pipeline, of up to nine stages: among more, the links of one rank are few."""
