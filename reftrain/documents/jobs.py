"""The answers about whole jobs: of weeks, and with a parameter server."""

from typing import Literal, TypedDict


class VariedDocument(TypedDict):
    """The share that trains when one habit is halved, and doubled."""

    name: str
    halved: float
    doubled: float


class GoodputDocument(TypedDict):
    """The answer of `reftrain goodput`; `training` and `parts` are shares of the job's time, intervals seconds.

    `varied` holds shares with Daly's interval; without a change that is `at_daly`. `detections` holds
    the share `training` that trains when a hang is noticed in `hang_s` seconds.
    """

    schema: Literal["reftrain.goodput/1"]
    gpus: int
    days: float
    hours_between: float
    interval_s: float
    best_s: float
    young_s: float
    daly_s: float
    interruptions: float
    training: float
    parts: dict[str, float]
    detections: list[dict[str, float]]
    at_daly: float
    varied: list[VariedDocument]


class ServerRowDocument(TypedDict):
    """One way to train, in seconds: `staleness` is null without a server; `waiting` is a share of the workers' time.

    `stale` is the mean number of updates that weights lacked when a gradient was computed.
    """

    name: str
    staleness: int | None
    step_s: float
    waiting: float
    stale: float


class ServerLossDocument(TypedDict):
    """A step of the trained job: its loss in nats a token, and the version of the weights of each worker."""

    step: int
    loss: float
    versions: list[int]


class ServerDocument(TypedDict):
    """The answer of `reftrain server`: simulated rows, and the steps of the trained job where it was trained.

    `waited_s` are the seconds that each worker of the trained job waited for weights; `pace` is the worker with a wait
    far below the others', or null.
    """

    schema: Literal["reftrain.server/1"]
    workers: int
    steps: int
    rows: list[ServerRowDocument]
    trained: list[ServerLossDocument]
    waited_s: list[float]
    pace: int | None


class PlannedStageDocument(TypedDict):
    """A stage of a recipe: its own mesh, and the mesh to take; seconds a step, GiB of the fullest rank."""

    name: str
    steps: int
    seq_len: int
    sequences: int
    mesh: dict[str, int]
    step_s: float
    memory_gib: float
    taken: dict[str, int]
    taken_schedule: str
    taken_step_s: float
    taken_memory_gib: float
    taken_hours: float


class RecipePlanDocument(TypedDict):
    """The answer of `reftrain plan --recipe`."""

    schema: Literal["reftrain.recipe_plan/1"]
    hardware: str
    stages: list[PlannedStageDocument]
