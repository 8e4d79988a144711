"""The engine on a Ray cluster: its workers read the files, and their tables come back to this machine.

Ray is imported only when used. Each of its tasks reads a few files in a process of its own below Ray's worker, so
that a file that kills its reader is rejected there for the same reason as here. Ray repeats the tasks of lost workers,
and recomputes lost results.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from tracekit.errors import InputError, TracekitError, UsageError
from tracekit.installation import check_extra
from tracekit.locked_folders import LOCK, temporary
from tracekit.text import whole_number
from tracekit.thresholds.ingest import (
    CONNECT_SECONDS,
    FILES_A_TASK,
    LOST_WORKERS,
    TASKS_A_CPU,
)
from tracekit.workers import IDLE_SECONDS, Engine, Handler, Limits, do_all

_ANY_HERE: Final = "auto"
"""Ray's word for the cluster that this machine belongs to."""
_LAST_PORT: Final = 65_535
_CLIENT: Final = "ray://"
"""Prefix of an address of Ray's own proxy, which serves machines outside of the cluster."""

SETTINGS: Final = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""An empty frame of settings, type 4, with which both sides of HTTP/2 begin (RFC 9113, 3.4); Ray speaks that."""
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
_TEMPORARY: Final = "tracekit-task-"


@contextmanager
def on_ray(address: str, jobs: int | None = None) -> Iterator[Engine]:
    """Lend the engine on the Ray cluster at `address`, as long as this program is connected to it.

    address: "HOST:PORT" of its head, from a machine of the cluster; "ray://HOST:PORT" of its proxy, from elsewhere; or
    "auto". jobs: files read at once; as many as the cluster has processors if left out. Raises MissingExtraError
    where Ray is not installed, UsageError if the address is invalid, InputError if no cluster answers there.
    """
    check_extra("ray", "--engine ray")
    _check(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of its own future
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", namespace="tracekit")
    except (OSError, RuntimeError, ValueError, TimeoutError) as error:
        raise _unreachable(address, str(error)) from error
    try:
        yield partial(_do, address, jobs)
    finally:
        ray.shutdown()


def _check(address: str) -> None:
    """Raise where no server or another kind of server listens at an address, since Ray would try for minutes."""
    if address == _ANY_HERE:
        return
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if not host or not whole_number(port, _LAST_PORT):
        raise UsageError(
            f"--address {address!r}: is not an address of a Ray cluster; write HOST:PORT, ray://HOST:PORT or auto"
        )
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as link:
            link.settimeout(CONNECT_SECONDS)
            link.sendall(_HELLO)
            answer = link.recv(len(SETTINGS))
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error
    if answer[3:4] != SETTINGS[3:4] and os.environ.get("RAY_USE_TLS", "0") == "0":
        raise _unreachable(address, "what listens there is no Ray")


def _unreachable(address: str, why: str) -> InputError:
    said = (why.strip() or "it does not answer").splitlines()[0][:200]
    return InputError(
        f"{address}: no Ray cluster answers there ({said}); check the address, and that the cluster runs"
    )


def _do(
    address: str,
    jobs: int | None,
    tasks: Sequence[Any],
    make_handler: Callable[[Path], Handler],
    folder: Path,
    limits: Limits,
    idle: Callable[[], None],
) -> Iterator[tuple[int, Any]]:
    """Do the tasks on the cluster that this process is connected to; as `Engine` says."""
    import ray

    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    most = jobs or TASKS_A_CPU * cpus  # under way at once
    size = max(1, min(FILES_A_TASK, len(tasks) // (2 * most)))
    ahead = [range(i, min(i + size, len(tasks))) for i in range(0, len(tasks), size)]
    ahead.reverse()
    there = ray.remote(num_cpus=1, max_retries=LOST_WORKERS)(done_there)
    under_way: dict[Any, range] = {}
    try:
        while ahead or under_way:
            while ahead and len(under_way) < most:
                places = ahead.pop()
                under_way[there.remote([tasks[i] for i in places], make_handler, limits)] = places
            ready, _ = ray.wait(list(under_way), timeout=IDLE_SECONDS)
            for one in ready:
                results, files = ray.get(one)
                for name, data in files.items():
                    (folder / name).write_bytes(data)
                yield from zip(under_way.pop(one), results, strict=True)
            idle()
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[-1][:200]
        raise TracekitError(
            f"{address}: the cluster did not do the work ({said}); look at its nodes, which need this tracekit as well"
        ) from error


def done_there(
    tasks: Sequence[Any], make_handler: Callable[[Path], Handler], limits: Limits
) -> tuple[list[Any], dict[str, bytes]]:
    """Do `tasks` in a process of this machine; return the results in their order, and the files that they wrote."""
    with temporary(_TEMPORARY) as folder:
        done = dict(do_all(tasks, partial(make_handler, folder), 1, limits, method="spawn"))
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}
    return [done[i] for i in range(len(tasks))], files
