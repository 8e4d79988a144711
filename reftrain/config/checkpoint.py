"""The tables [checkpoint] and [elastic] of the configuration: what a job goes on from, and when it does."""

from dataclasses import dataclass

from reftrain.config.fields import check_bounds, setting
from reftrain.thresholds import MOST_DEVICES, MOST_STEPS


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state is saved and from where it starts."""

    every: int = setting(0, "steps between checkpoints; 0 saves none", least=0, most=MOST_STEPS)
    at_end: bool = setting(default=False, meaning="save after the last step too, whatever every says")
    keep: int = setting(2, "finished checkpoints kept", least=1, most=MOST_STEPS)
    asynchronous: bool = setting(default=True, meaning="write in the background while the next steps run")
    resume: str = setting(
        "", "folder to start from: a checkpoint, a checkpoint folder, or auto for this run's own latest"
    )

    def __post_init__(self) -> None:
        check_bounds("checkpoint", self)


@dataclass(frozen=True)
class ElasticConfig:
    """What happens to the job when a rank dies: without --elastic it ends."""

    enabled: bool = setting(
        default=False, meaning="start the ranks again from the last checkpoint when one dies, on this machine"
    )
    restarts: int = setting(10, "restarts before the job gives up", least=0, most=MOST_STEPS)
    min_replicas: int = setting(
        0,
        "data-parallel replicas down to which a death takes a replica out; 0 replaces every lost rank",
        least=0,
        most=MOST_DEVICES,
    )

    def __post_init__(self) -> None:
        check_bounds("elastic", self)
