"""An answer goes into trackers as the numbers of its JSON and its page; the dashboard asks for metrics that exist."""

import json
import re
import sys
from types import ModuleType

import pytest

import tracekit
from tests.house.source import ROOT
from tracekit.errors import MissingExtraError
from tracekit.report import trackers
from tracekit.report.slowrank_json import slowrank_document


@pytest.fixture(scope="module")
def slow(ingested):
    return tracekit.slowrank(tracekit.load(ingested("demo_slow_tp")))


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "slowrank.html"
    path.write_text("<p>page</p>")
    return path


@pytest.fixture
def stand_in(monkeypatch):
    """Put modules in the place of a tracker, with what its functions are called with."""

    def put(name, **functions):
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)

    monkeypatch.setattr(trackers, "check_extra", lambda *_: None)
    return put


def test_scalars_are_the_numbers_of_the_json(slow):
    found, document = trackers.scalars(slow), slowrank_document(slow)
    assert found["slowrank/step_ms"] == pytest.approx(document["what_if"]["step_ms"], abs=1e-3)
    assert found["slowrank/matched"] == pytest.approx(document["coverage"]["matched"], abs=1e-3)
    lost = {f"slowrank/lost_ms/rank{s['rank']}": s["lost_ms_per_step"] for s in document["suspects"]}
    assert {k: v for k, v in found.items() if "lost_ms" in k} == pytest.approx(lost, abs=1e-3)


def test_mlflow_gets_metrics_and_the_page(slow, page, stand_in):
    said = []
    stand_in(
        "mlflow",
        log_metrics=lambda values, step: said.append((values, step)),
        log_artifact=lambda path, artifact_path: said.append((path, artifact_path)),
    )
    trackers.to_mlflow(slow, page, step=7)
    assert said == [(trackers.scalars(slow), 7), (str(page), "slowrank")]


def test_wandb_gets_scalars_and_the_page(slow, page, stand_in):
    said = []
    stand_in("wandb", Html=lambda text: ("html", text))
    run = ModuleType("run")
    run.log = said.append
    trackers.to_wandb(slow, run, page)
    trackers.to_wandb(slow, run)
    scalars = trackers.scalars(slow)
    assert said == [{**scalars, "slowrank/page": ("html", "<p>page</p>")}, scalars]


def test_tensorboard_reads_back_what_was_written(slow, tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra tensorboard"
    )
    trackers.to_tensorboard(slow, tmp_path, step=7)
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    read = {name: (e.step, e.value) for name in events.Tags()["scalars"] for e in events.Scalars(name)}
    wanted = {name: (7, pytest.approx(value, rel=1e-5)) for name, value in trackers.scalars(slow).items()}
    assert read == wanted


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_an_absent_tracker_is_a_line_of_pip(slow, tmp_path, monkeypatch, name):
    monkeypatch.setattr("tracekit.installation.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'tracekit4d\[{name}\]'"):
        getattr(trackers, f"to_{name}")(slow, tmp_path)


def test_the_dashboard_asks_for_metrics_that_exist(slow):
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    from tracekit.findings import HangFinding, RankCoverage
    from tracekit.report.prometheus import hang_metrics, slowrank_metrics

    hang = HangFinding(RankCoverage(2, 2), None, "none", "nobody waits", (), None, ())
    known = set(re.findall(r"tracekit_\w+", slowrank_metrics(slow) + hang_metrics(hang)))
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    assert len(asked) >= 6
    assert {name for text in asked for name in re.findall(r"tracekit_\w+", text)} <= known
