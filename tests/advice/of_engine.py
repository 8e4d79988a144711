"""Clusters that are refused, and what the refusals advise; a likeness of Ray stands for the real one."""

import socket
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from tracekit_cli.tracekit_commands import slowrank

from tests.advice.cases import command, traces
from tests.advice.register import Call, case
from tracekit import installation
from tracekit.errors import InputError, MissingExtraError
from tracekit.ingest import load, ray_engine

NOWHERE = "127.0.0.1:1"


def connected(address: str) -> None:
    """Connect to a cluster, and leave it."""
    with ray_engine.on_ray(address):
        return


def not_there() -> None:
    """Get as far as an address at which nobody listens."""
    with pytest.raises(InputError, match=NOWHERE):
        connected(NOWHERE)


@case("write HOST:PORT, ray://HOST:PORT or auto")
def _(_folder, patch):
    patch.setattr(installation, "find_spec", lambda _: True)
    return lambda: connected("head"), not_there


@case("check the address, and that the cluster runs")
def _(_folder, patch):
    patch.setattr(installation, "find_spec", lambda _: True)
    patch.setitem(sys.modules, "ray", Mock())

    def runs() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def greet() -> None:
                with server.accept()[0] as link:
                    link.sendall(ray_engine.SETTINGS)

            answering = threading.Thread(target=greet)
            answering.start()
            connected(f"127.0.0.1:{server.getsockname()[1]}")
            answering.join()

    return lambda: connected(NOWHERE), runs


@case("look at its nodes, which need this tracekit as well")
def _(folder, patch):
    lost = type("RayError", (Exception,), {})
    ray = Mock()
    ray.exceptions.RayError = lost
    ray.cluster_resources.return_value = {"CPU": 1}
    ray.wait.side_effect = lambda waiting, timeout: (waiting, [])
    ray.remote.return_value.return_value.remote.side_effect = lambda tasks, *rest: (tuple(tasks), *rest)
    patch.setattr(installation, "find_spec", lambda _: True)
    patch.setattr(ray_engine, "_check", lambda _: None)
    patch.setitem(sys.modules, "ray", ray)
    given = traces(folder, 2)

    def gone(_asked: object) -> None:
        raise lost("No module named 'tracekit'")

    def read(answers: object) -> Call:
        def call() -> object:
            ray.get.side_effect = answers
            with ray_engine.on_ray("head:6379") as engine:
                return load([given], engine=engine)

        return call

    return read(gone), read(lambda asked: ray_engine.done_there(*asked))


@case("add --engine ray")
def _(folder: Path, patch):
    patch.setattr(installation, "find_spec", lambda _: None)
    given = f"{traces(folder, 2)} --address {NOWHERE}"
    refused, engine = command(slowrank.slowrank, given, f"{given} --engine ray")

    def asked() -> None:
        with pytest.raises(MissingExtraError, match="needs ray"):
            engine()

    return refused, asked
