"""The trace that `make bench` makes where no recorded one lies has what its readers join by."""

import json
from collections import Counter

from tests.bench import traces


def test_each_launch_has_a_kernel_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(traces, "REAL", tmp_path / "absent")
    text, told = traces.base_text()
    events = json.loads(text)["traceEvents"]
    ids = {
        cat: Counter(e["args"]["correlation"] for e in events if e.get("cat") == cat)
        for cat in ("cuda_runtime", "kernel")
    }
    assert "synthetic" in told
    assert ids["kernel"] == ids["cuda_runtime"]
    assert set(ids["kernel"].values()) == {1}
    assert max(ids["kernel"]) < 2**31
