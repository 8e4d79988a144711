"""What tests of captures share: their tables are read at once, where no test has damaged them."""

import pytest


@pytest.fixture(autouse=True)
def no_trial(request, monkeypatch):
    """Read tables of captures without a trial in a forked process first, which takes longer than most comparisons.

    A fork of a process that holds torch costs some 60 ms, and the test's own ranks have just written these files.
    Tests marked `damaged` keep the trial; so do the tests of commands that other processes run.
    """
    if request.node.get_closest_marker("damaged") is None:
        monkeypatch.setattr("numerics.store.deaths", lambda *_: {})
