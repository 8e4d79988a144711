"""A job that goes on after a rank died: `reftrain run --elastic`, by torch's own elastic agent.

The agent (`torch.distributed.elastic`) holds the store at which the ranks meet, forks them, watches them, and starts
all of them again when one fails. What it does not know is added here: which rank died of itself, that a wrong
configuration or a full disk will not get better, from which checkpoint to go on, on how many replicas, and where the
evidence of the failed attempt goes (`attempts`).
"""

import contextlib
import dataclasses
import json
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

from reftrain.config.run import RunConfig
from reftrain.errors import CheckpointError, ConfigError, MachineError, RankDiedError, ReftrainError
from reftrain.faults.bugs import read_bugs
from reftrain.faults.registry import read_faults
from reftrain.job.attempts import Attempts
from reftrain.job.one_rank import MakeHooks, train_rank
from reftrain.rank.processes import ENDING, Death, describe_error, first_of, is_stopped, start_rank
from reftrain.rank.world import World
from reftrain.thresholds import END_S, LARGEST_REPORT, WATCH_S

Tell = Callable[[str], None]
"""Takes a sentence about the job for its user."""
FINAL: Final = {"CheckpointError": CheckpointError, "MachineError": MachineError}
"""Errors of a rank that the next attempt would meet again, besides those of the configuration."""
_HOST: Final = "localhost"
_LOGGERS: Final = "torch.distributed.elastic"


class Job:
    """The attempts of one job: the configuration of the present one, and what follows from how it ended."""

    def __init__(self, config: RunConfig, tell: Tell) -> None:
        self.whole = self.config = config
        self.tell = tell
        self.attempts = Attempts(Path(config.out), config.checkpoint.resume)
        self.error: ReftrainError | None = None
        self._restarts = 0
        self._ended = ""

    def may_go_on(self, deaths: list[Death]) -> bool:
        """Note how the present attempt ended, and return whether another one may succeed."""
        first = first_of(deaths)
        left = self.whole.elastic.restarts - self._restarts
        kind, sentence = first.report or ("", "")
        self.attempts.end(first, self.config.mesh.world_size)
        self._ended = str(first)
        if first.refused or kind in FINAL:
            self.error = first.refused or FINAL[kind](sentence)
            return False
        if not left:
            remedy = "raise elastic.restarts, and go on with --resume auto"
            self.error = RankDiedError(f"{first}; no restart is left of {self._restarts}; {remedy}")
            return False
        return True

    def begin_next(self) -> None:
        """Set the evidence of the failed attempt aside, and decide with how many replicas the next one begins."""
        self._restarts += 1
        fewer = smaller(self.config) if 0 < self.whole.elastic.min_replicas < self.config.mesh.dp else None
        self.config = fewer or self.config
        mesh = self.config.mesh
        sentence = self.attempts.next(f"{mesh.world_size} ranks" + (f" (dp {mesh.dp})" if fewer else ""))
        checkpoint = dataclasses.replace(self.config.checkpoint, resume=self.attempts.source)
        self.config = dataclasses.replace(self.config, checkpoint=checkpoint)
        self.tell(f"{self._ended}; {sentence}")


def smaller(config: RunConfig) -> RunConfig | None:
    """Return the configuration with the next smaller number of replicas that divides the batch; None where none does.

    Faults of ranks that are gone go with them.
    """
    for dp in range(config.mesh.dp - 1, max(config.elastic.min_replicas, 1) - 1, -1):
        with contextlib.suppress(ConfigError):
            fewer = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, dp=dp))
            kept = tuple(text for text in config.evidence.faults if _strikes(fewer, text))
            return dataclasses.replace(fewer, evidence=dataclasses.replace(config.evidence, faults=kept))
    return None


def _strikes(config: RunConfig, fault: str) -> bool:
    """Whether a planted fault or bug can strike on this mesh."""
    alone = dataclasses.replace(config, evidence=dataclasses.replace(config.evidence, faults=(fault,)))
    try:
        read_faults(alone)
        read_bugs(alone)
    except ConfigError:
        return False
    return True


class Agent(LocalElasticAgent):
    """Torch's agent for the ranks of one machine, which asks the job before it starts them again."""

    def __init__(self, job: Job, spec: WorkerSpec, logs: DefaultLogsSpecs) -> None:
        super().__init__(spec, logs, start_method="fork", shutdown_timeout=int(END_S))
        self._job = job
        self._living: set[int] = set()
        """Ranks that lived when the failure of another was seen: what ends them then is the agent."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the ranks; where one failed, all have ended.

        Torch asks the others to end, and waits 30 s before it kills a stopped rank: that is done at once here.
        """
        processes = self._processes
        failed = any(process.exitcode for process in processes)
        self._living = {rank for rank, process in enumerate(processes) if failed and process.exitcode is None}
        for rank in self._living:
            if is_stopped(processes[rank].pid):
                processes[rank].kill()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state in {WorkerState.FAILED, WorkerState.UNHEALTHY} and not self._job.may_go_on(
            self._deaths()
        ):
            self._remaining_restarts = 0
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Start the ranks of the next attempt, which may be fewer."""
        self._stop_workers(worker_group)
        self._job.begin_next()
        spec = worker_group.spec
        spec.args = (self._job, *spec.args[1:])
        spec.local_world_size = self._job.config.mesh.world_size
        super()._restart_workers(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = int(END_S)) -> None:
        """End the ranks by SIGTERM, whatever ends the agent: they ignore what a terminal sends to all."""
        del death_sig
        super()._shutdown(signal.SIGTERM, timeout)

    def _deaths(self) -> list[Death]:
        """Return the ranks that failed; the agent ended the others because of them."""
        context: Any = self._pcontext
        deaths = []
        for rank, process in enumerate(self._processes):
            code = process.exitcode
            if code and code != -signal.SIGTERM:
                status = -code if code < 0 else code << 8
                report = _report(Path(context.error_files[rank]))
                frozen = rank in self._living and status == signal.SIGKILL
                deaths.append(Death(rank, process.pid, status, report, frozen))
        # SIGTERM from outside looks like the agent's own: the rank that the agent saw first is among them
        return deaths or [Death(0, self._processes[0].pid, int(signal.SIGTERM), None)]

    @property
    def _processes(self) -> list[Any]:
        """The processes of the present attempt, by rank."""
        context: Any = self._pcontext
        return list(context._pc.processes)  # noqa: SLF001 - it has no public name


def _report(path: Path) -> tuple[str, str] | None:
    """Return kind and sentence of a rank's error, where it left any."""
    try:
        kind, sentence = json.loads(path.read_bytes()[:LARGEST_REPORT])["message"].split("\n", 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return kind, sentence


def _work(job: Job, make_hooks: MakeHooks, parent: int, folder: Path) -> None:
    """Train on one rank of the agent's world; leave an error in the file that the agent names, and exit.

    The ranks of each attempt meet in a file of their own: the agent's store keeps the addresses of dead ranks.
    """
    start_rank(parent)
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        world = World(rank, rank, size, f"file://{folder}/store-{job.attempts.number}")
        train_rank(job.config, world, make_hooks, job.attempts.reached)
    except BaseException as error:  # noqa: BLE001 - reported to the agent
        with contextlib.suppress(OSError):
            text = json.dumps({"message": "\n".join(describe_error(error))})
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(text, encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def run_elastic(config: RunConfig, make_hooks: MakeHooks, tell: Tell, folder: Path) -> None:
    """Run the job to its end through deaths of its ranks; `folder` is a temporary one.

    Raises the error of the attempt after which none can follow.
    """
    job = Job(config, tell)
    with _silent_agent(), _signals_as_before():
        try:
            handler = registry.get_rendezvous_handler(
                RendezvousParameters("c10d", f"{_HOST}:0", uuid.uuid4().hex, 1, 1, _HOST, is_host=True)
            )
            spec = WorkerSpec(
                role="reftrain",
                local_world_size=config.mesh.world_size,
                rdzv_handler=handler,
                entrypoint=_work,
                args=(job, make_hooks, os.getpid(), folder),
                max_restarts=config.elastic.restarts,
                monitor_interval=WATCH_S,
            )
            agent = Agent(job, spec, DefaultLogsSpecs(log_dir=str(folder)))
            try:
                failed = agent.run().is_failed()
            finally:
                handler.shutdown()
        except SignalException as error:
            _end_by(error.sigval)
    if failed:
        raise job.error or RankDiedError("the job ended")
    job.attempts.finish()


@contextlib.contextmanager
def _silent_agent() -> Iterator[None]:
    """Keep the agent's own log, tracebacks among it, off stderr: `tell` and the raised error say the same."""
    loggers = [
        logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith(_LOGGERS)
    ]
    loggers.append(logging.getLogger("torch.multiprocessing.spawn"))
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """Put back the handlers of signals that the agent replaces."""
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_by(number: int) -> NoReturn:
    """End as the signal would have ended this process, after the ranks have ended."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)
