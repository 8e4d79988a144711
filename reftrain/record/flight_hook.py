"""Puts the flight recorder into a run of the trainer: run/fr/rank_N, in time for whatever ends the run.

On Gloo the log, stacks and counters of `job_log` are written beside it.
"""

import sys
from pathlib import Path

from reftrain.rank.events import CollectiveCall
from reftrain.rank.hooks import Hooks, RunContext
from reftrain.record.flight import FlightRecorder, enable
from reftrain.record.job_log import JobLog


class FlightRecording(Hooks):
    """Keeps a flight-recorder dump of this rank. To be made before the process group is."""

    def __init__(self, out: str | Path) -> None:
        enable(Path(out) / "fr")
        self._recorder: FlightRecorder | None = None
        self._log: JobLog | None = None

    def setup(self, context: RunContext) -> None:
        """Start; all process groups exist."""
        folder = Path(context.config.out) / "fr"
        self._recorder = FlightRecorder(folder, context.config.evidence.waiting_s)
        self._recorder.start()
        if context.device.type != "cuda":  # there torch's own watchdog writes
            self._log = JobLog(
                Path(context.config.out), context.config.evidence.waiting_s, self._recorder.state
            )
            self._log.start()

    def collective_end(self, call: CollectiveCall) -> None:
        """Note a collective that is complete."""
        if self._recorder is not None and call.peer is None:
            self._recorder.finished(call.group)

    def wait_end(self, call: CollectiveCall) -> None:
        """Note a message that has gone or come."""
        if self._recorder is not None:
            self._recorder.finished(call.group, call.peer, call.op)

    def close(self) -> None:
        """Stop, also after an error: a hang that was seen stays in the file."""
        recorder, self._recorder = self._recorder, None
        log, self._log = self._log, None
        if log is not None:
            log.stop(sys.exc_info()[1])
        if recorder is not None:
            recorder.stop(failed=sys.exc_info()[0] is not None)  # closed while an error passes through
