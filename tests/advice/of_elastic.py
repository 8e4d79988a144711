"""Jobs that go on after deaths, what is refused of them, and what the refusals advise."""

import signal
from pathlib import Path

from reftrain.job.attempts import Attempts
from reftrain.job.elastic import Job
from reftrain.job.launcher import launch
from reftrain.rank.processes import Death
from reftrain.record.manifest import write_manifest
from tests.advice.of_config import configured
from tests.advice.register import calls, case

ELASTIC = "elastic.enabled=true checkpoint.every=10"

calls("0 saves nothing that an elastic job could go on from", configured, "elastic.enabled=true", ELASTIC)
calls(
    "replicas are more than dp {}",
    configured,
    f"{ELASTIC} mesh.dp=2 elastic.min_replicas=3",
    f"{ELASTIC} mesh.dp=2 elastic.min_replicas=2",
)


@case("{} holds checkpoints or attempts of an earlier job")
def _(folder, _patch):
    (folder / "run" / "checkpoint" / "step-00000004").mkdir(parents=True)

    def followed() -> None:
        assert Attempts(folder / "run", "auto").saved == 4
        assert Attempts(folder / "other", "").saved is None

    return lambda: Attempts(folder / "run", ""), followed


def died(folder: Path, settings: str) -> Job:
    """An elastic job that saved, and then a rank of it was killed; raises why it does not go on."""
    job = Job(configured(f"{ELASTIC} mesh.dp=2 run.out={folder} {settings}"), lambda _: None)
    (folder / "checkpoint" / "step-00000004").mkdir(parents=True, exist_ok=True)
    write_manifest(folder, {"steps": 9})
    if not job.may_go_on([Death(1, 7, signal.SIGKILL, None)]):
        raise job.error or AssertionError
    return job


@case("{}; no restart is left of {}; {}")
def _(folder, _patch):
    def followed() -> None:
        job = died(folder, "elastic.restarts=1 checkpoint.resume=auto")
        job.begin_next()
        assert job.config.checkpoint.resume == "auto"

    return lambda: died(folder, "elastic.restarts=0"), followed


@case("elastic.enabled: another launcher has started this rank")
def _(folder, patch):
    trained = []
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        patch.setenv(name, value)
    patch.setattr("reftrain.job.launcher.leave_signals_to_the_launcher", lambda: None)
    patch.setattr("reftrain.job.launcher.train_rank", lambda *given: trained.append(given))

    def launched(settings: str) -> None:
        launch(configured(f"run.out={folder} mesh.dp=2 {settings}"), lambda _: [])

    def followed() -> None:
        launched("checkpoint.every=10 checkpoint.resume=auto")
        ((config, world, _),) = trained
        assert (config.checkpoint.resume, world.rank) == ("auto", 1)

    return lambda: launched(ELASTIC), followed
