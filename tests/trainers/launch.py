"""Forks the ranks of a trainer and the commands that ask about it, after torch has been imported once."""

import contextlib
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from tests.trainers.case import ROOT, Run

FORK = multiprocessing.get_context("fork")
SECONDS_A_RUN = 300


@dataclass(frozen=True)
class Answer:
    """What `numerics compare` printed: the exit code, its text, its JSON (None where there is none)."""

    code: int
    text: str
    error: str
    finding: dict[str, object] | None
    seconds: float


def in_parallel(
    tasks: Mapping[str, Callable[[], None]], jobs: int, finished: Callable[[str], None] = lambda _name: None
) -> None:
    """Runs each task in a fork of this process, at most `jobs` at once; calls `finished` with each task's name."""
    waiting, running = list(tasks), dict[str, BaseProcess]()
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            running[name] = FORK.Process(target=tasks[name])
            running[name].start()
        multiprocessing.connection.wait([process.sentinel for process in running.values()])
        for name in [name for name, process in running.items() if not process.is_alive()]:
            running.pop(name).join()
            finished(name)


def record(run: Run, folder: Path) -> None:
    """Runs all ranks of a trainer, which record themselves into `folder`/name; a failure is left in name.failed."""
    for suffix in (".log", ".store", ".failed"):
        (folder / f"{run.name}{suffix}").unlink(missing_ok=True)
    shutil.rmtree(folder / run.name, ignore_errors=True)
    processes = [FORK.Process(target=_rank, args=(run, rank, folder)) for rank in range(run.ranks)]
    for process in processes:
        process.start()
    end = time.monotonic() + SECONDS_A_RUN
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    log = folder / f"{run.name}.log"
    if any(process.exitcode for process in processes):
        (folder / f"{run.name}.failed").write_text(log.read_text() if log.exists() else "no output")
    (folder / f"{run.name}.done").touch()


def _rank(run: Run, rank: int, folder: Path) -> None:
    _redirect(folder / f"{run.name}.log")
    os.environ.update(NUMERICS_CAPTURE=str(folder / run.name), NUMERICS_CAPTURE_LEVEL="tensors")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(run.ranks))
    torch.set_num_threads(1)
    store = folder / f"{run.name}.store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=run.ranks)
    torch.manual_seed(0)
    try:
        run.train(rank, run.ranks, **dict(run.options))
    except BaseException:  # noqa: BLE001  # whatever a trainer or the command raises is the result
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    dist.destroy_process_group()


def ask(arguments: list[str], out: Path) -> None:
    """Calls `numerics` with these arguments as the shell would, and leaves the answer in `out`."""
    text, error, finding = (out.with_suffix(suffix) for suffix in (".out", ".err", ".finding"))
    _redirect(text, error)
    os.chdir(ROOT)
    sys.argv = ["numerics", *arguments, "--json", str(finding)]
    torch.set_num_threads(1)
    began, code = time.monotonic(), 0
    try:
        importlib.import_module("tracekit_cli.numerics").main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001  # whatever a trainer or the command raises is the result
        traceback.print_exc()
        code = -1
    sys.stdout.flush()
    sys.stderr.flush()
    found = None
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(finding.read_text())
    answer = Answer(code, text.read_text(), error.read_text(), found, time.monotonic() - began)
    out.write_text(json.dumps(asdict(answer)))


def read_answer(out: Path) -> Answer:
    """The answer that `ask` left; a command that died leaves exit code -1."""
    if not out.exists():
        return Answer(-1, "", "the command died", None, 0.0)
    return Answer(**json.loads(out.read_text()))


def _redirect(output: Path, error: Path | None = None) -> None:
    for number, path in ((1, output), (2, error or output)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
