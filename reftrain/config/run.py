"""The configuration of a run: plain frozen data, validated when constructed.

`file` reads it from TOML and flags, `checks` compares its tables (heads with tp, batch with micro-batches, layers
with stages), `reftrain.record.manifest` writes it into run.json.
"""

from dataclasses import dataclass

from reftrain.config.checkpoint import CheckpointConfig, ElasticConfig
from reftrain.config.checks import validate
from reftrain.config.encoder import EncoderConfig
from reftrain.config.evaluation import EvaluationConfig
from reftrain.config.fields import check_bounds, check_choice
from reftrain.config.model_mesh import MeshConfig, ModelConfig, PipelineConfig
from reftrain.config.tables import (
    DataConfig,
    EvidenceConfig,
    NumericsConfig,
    OptimizerConfig,
    Tables,
)

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "ElasticConfig",
    "EncoderConfig",
    "EvaluationConfig",
    "EvidenceConfig",
    "MeshConfig",
    "ModelConfig",
    "NumericsConfig",
    "OptimizerConfig",
    "PipelineConfig",
    "RunConfig",
]


@dataclass(frozen=True)
class RunConfig(Tables):
    """A whole run: its tables agree with one another, or `ConfigError` names the field and the remedy."""

    def __post_init__(self) -> None:
        check_bounds("run", self)
        check_choice("run", self, "device", ("auto", "cpu", "cuda"))
        check_choice("run", self, "compute", ("real", "emulated"))
        validate(self)
