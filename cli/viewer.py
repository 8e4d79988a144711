"""Lends one trace to the viewer at ui.perfetto.dev, which reads it in the browser and sends it nowhere."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EADDRINUSE
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, ClassVar, Final

from tracekit.errors import InputError

VIEWER: Final = "https://ui.perfetto.dev"
HOST: Final = "127.0.0.1"
PORT: Final = 9001
"""The one port from which the viewer's own policy lets it read."""
_CLIENT_S: Final = 30.0
"""Seconds to wait for more data from a silent browser."""


class _Lender(ThreadingHTTPServer):
    """Holds the trace, its unguessable path, and whether it was fetched."""

    daemon_threads = True

    def __init__(self, trace: bytes, port: int) -> None:
        self.trace, self.path, self.fetched = trace, f"/{secrets.token_urlsafe()}", Event()
        super().__init__((HOST, port), _Handler)

    def handle_error(self, *_request: Any) -> None:
        """Say nothing of a browser that left in the middle: it may ask again."""


class _Handler(BaseHTTPRequestHandler):
    """Answers the viewer alone, and the path of the trace alone."""

    server: _Lender
    timeout = _CLIENT_S
    headers_sent: ClassVar[dict[str, str]] = {
        "Access-Control-Allow-Origin": VIEWER,
        "Access-Control-Allow-Private-Network": "true",
        "Cache-Control": "no-store",
        "Vary": "Origin",
    }

    def do_GET(self) -> None:
        """Send the trace for the first request; further requests, and requests for other paths, get 404."""
        if self.path != self.server.path or self.server.fetched.is_set():
            self._answer(404, b"")
            return
        self._answer(200, self.server.trace)
        self.server.fetched.set()

    def do_OPTIONS(self) -> None:
        """Allow the viewer to fetch from this address."""
        self._answer(204 if self.path == self.server.path else 404, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing: stderr is the command's."""


@contextmanager
def lent(trace: bytes, port: int | None = None) -> Iterator[tuple[str, Event]]:
    """Lend the address of the viewer with this trace, and an event that is set once it was fetched.

    port: the port on this machine; None is the viewer's port, 0 any free one. Raises InputError if it is taken.
    """
    try:
        server = _Lender(trace, PORT if port is None else port)
    except OSError as error:
        if error.errno != EADDRINUSE:
            raise
        raise InputError(
            f"port {PORT if port is None else port} is taken, and the viewer asks no other; "
            "end the program that listens there, or use tracekit slowrank --perfetto"
        ) from error
    with server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"{VIEWER}/#!/?url=http://{HOST}:{server.server_port}{server.path}", server.fetched
        finally:
            server.shutdown()
