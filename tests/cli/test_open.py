"""`tracekit open`: the trace goes once to the viewer, to nobody else, and the command ends."""

import socket
from http.client import HTTPConnection
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest
from tracekit_cli import viewer
from tracekit_cli.tracekit_commands import open_trace

from tracekit.errors import InputError

TRACE = b"\x0a\x02trace" * 1000


def trace_url(address):
    """Where the viewer's address says that the trace is."""
    parts = urlsplit(address)
    assert f"{parts.scheme}://{parts.netloc}" == viewer.VIEWER
    return parse_qs(parts.fragment.partition("?")[2])["url"][0]


def asked(url, method="GET"):
    with urlopen(Request(url, method=method, headers={"Origin": viewer.VIEWER}), timeout=5) as answer:
        return answer.status, answer.headers, answer.read()


def test_viewer_fetches_the_trace_once():
    with viewer.lent(TRACE, 0) as (address, fetched):
        url = trace_url(address)
        assert urlsplit(url).hostname == "127.0.0.1"
        status, headers, body = asked(url)
        assert fetched.wait(5)
        assert (status, body) == (200, TRACE)
        assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        assert headers["Cache-Control"] == "no-store"
        with pytest.raises(HTTPError, match="404"):
            asked(url)


def test_other_requests_leave_the_trace_unfetched():
    with viewer.lent(TRACE, 0) as (address, fetched):
        url = trace_url(address)
        status, headers, _ = asked(url, "OPTIONS")
        assert (status, headers["Access-Control-Allow-Private-Network"]) == (204, "true")
        for other in (url + "x", url.rpartition("/")[0] + "/", url.rpartition("/")[0] + "/trace"):
            with pytest.raises(HTTPError, match="404"):
                asked(other)
        silent = HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=5)
        silent.connect()  # as browsers do before they ask
        assert not fetched.is_set()
        assert asked(url)[2] == TRACE
        silent.close()


def test_a_taken_port_is_told(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(viewer, "PORT", taken.getsockname()[1])
        with pytest.raises(InputError, match="the viewer asks no other"), viewer.lent(TRACE):
            pass


def test_command_leaves_once_the_trace_is_fetched(monkeypatch, tracekit, slow):
    pytest.importorskip("perfetto", reason="the extra perfetto is not installed")
    got = []
    monkeypatch.setattr(viewer, "PORT", 0)
    browse = Thread(target=lambda: got.append(asked(trace_url(opened[0]))[2]))
    opened = []
    monkeypatch.setattr(open_trace.webbrowser, "open", lambda url: (opened.append(url), browse.start()))
    done = tracekit("open", slow[0], "--quiet")
    browse.join(5)
    assert (done.code, done.out) == (0, opened[0] + "\n"), done.err
    assert got
    assert got[0].startswith(b"\x0a")
