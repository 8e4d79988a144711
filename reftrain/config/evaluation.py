"""The table [evaluation] of the configuration: how often the loss on held-out data is measured, and on which."""

from dataclasses import dataclass

from reftrain.config.fields import check_bounds, setting
from reftrain.thresholds import MOST_STEPS


@dataclass(frozen=True)
class EvaluationConfig:
    """Loss on held-out data between the steps."""

    every: int = setting(0, "steps between evaluations; 0 makes none", least=0, most=MOST_STEPS)
    batches: int = setting(1, "batches of an evaluation, the same each time", least=1, most=MOST_STEPS)
    files: tuple[str, ...] = setting(
        (), "held-out files, of the form of data.files; synthetic data has documents of another seed"
    )

    def __post_init__(self) -> None:
        check_bounds("evaluation", self)
