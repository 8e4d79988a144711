"""Files to a `Run`: discover, decompress, scan, repair, sort, write, merge."""

from tracekit.ingest.load import ProgressEvent, load

__all__ = ["ProgressEvent", "load"]
