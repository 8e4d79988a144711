"""A headless Chromium that is asked through a pipe: what a page says, requests and does when it is used."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIETLY = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"
)

WAIT_S = 60
AS_THREE_AND_FOUR = (
    "import fcntl, os, sys; calls, answers = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]);"
    "os.dup2(calls, 3); os.dup2(answers, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""Becomes a program whose pipes are the descriptors 3 and 4, where Chromium looks for them."""


class Page:
    """One tab. `complaints` are errors and console lines, `requests` every address that was asked for."""

    def __init__(self, to, answers):
        self.to, self.answers, self.rest = to, answers, b""
        self.number, self.session = 0, None
        self.complaints, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **given):
        """The result of one call of the protocol of Chromium's developer tools."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            self._note(told)
            if told.get("id") == self.number:
                assert "error" not in told, told
                return told["result"]

    def _next(self):
        while b"\0" not in self.rest:
            assert select.select([self.answers], [], [], WAIT_S)[0], "Chromium does not answer"
            read = os.read(self.answers, 1 << 16)
            assert read, "Chromium has ended"
            self.rest += read
        first, _, self.rest = self.rest.partition(b"\0")
        return json.loads(first)

    def _note(self, told):
        kind, what = told.get("method"), told.get("params")
        if kind == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif kind in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}:
            self.complaints.append(what)

    def ask(self, expression):
        """The value of an expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def open(self, path):
        """Go to a file, and return when the page is drawn and painted: seconds from the call on."""
        begun = time.monotonic()
        self.call("Page.navigate", url=path.as_uri())
        while not self.ask("document.documentElement?.dataset.drawn === 'true'"):
            assert time.monotonic() - begun < WAIT_S
            time.sleep(0.01)
        self.painted()
        return time.monotonic() - begun

    def painted(self):
        """Wait until what was done is on the screen: the second frame from now."""
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def choose(self, name, value):
        """Choose a value of a select, as a hand would; seconds until it is painted."""
        begun = time.monotonic()
        self.ask(
            f"(s => {{s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change'))}})"
            f"(document.getElementById({json.dumps(name)}))"
        )
        self.painted()
        return time.monotonic() - begun

    def click(self, x, y):
        """Press and release the mouse at a place of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.painted()


@contextmanager
def chromium(folder):
    """A tab of a browser whose profile is in `folder`; the browser ends with it."""
    read_calls, to = os.pipe()
    answers, write_answers = os.pipe()
    command = [
        CHROMIUM, *QUIETLY, f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900",
        "--remote-debugging-pipe",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", AS_THREE_AND_FOUR, str(read_calls), str(write_answers), *command],
        pass_fds=(read_calls, write_answers), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(read_calls)
    os.close(write_answers)
    try:
        yield Page(to, answers)
    finally:
        process.terminate()
        process.wait(WAIT_S)
        os.close(to)
        os.close(answers)
