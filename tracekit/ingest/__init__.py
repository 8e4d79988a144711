"""Files to a `Run`: discover, decompress, scan, repair, sort, write, merge."""

from tracekit.ingest.load import load
from tracekit.ingest.reading import ProgressEvent

__all__ = ["ProgressEvent", "load"]
