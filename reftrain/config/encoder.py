"""The table [encoder] of the configuration: the image encoder, and its place in the pipeline.

Source of the placements: "Scaling Llama 3 Training with Efficient Parallelism Strategies" (ISCA'25), section 3.2.1.
"""

from dataclasses import dataclass
from typing import Final

from reftrain.config.fields import check_bounds, check_choice, setting
from reftrain.errors import ConfigError
from reftrain.thresholds import MOST_LAYERS, WIDEST

PLACEMENTS: Final = ("inside", "before", "replicated")
"""The paper's options 1 to 3: inside the first stage, before the pipeline, on every pipeline rank for a share."""


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of the vision transformer, one image a sequence."""

    layers: int = setting(0, "layers of the image encoder; 0 means a text model", least=0, most=MOST_LAYERS)
    dim: int = setting(32, "encoder width", least=1, most=WIDEST)
    heads: int = setting(4, "attention heads of the encoder; divides its width", least=1, most=WIDEST)
    ffn_dim: int = setting(64, "inner width of the encoder's feed-forward", least=1, most=WIDEST)
    tokens: int = setting(16, "patches of an image, and image tokens a sequence", least=1, most=WIDEST)
    patch: int = setting(12, "numbers of a patch: colours times height times width", least=1, most=WIDEST)
    placement: str = setting(
        "before",
        "inside (with each micro-batch of the first stage, tokens sent on with activations), before (all images on "
        "the first pipeline rank, tokens broadcast) or replicated (every pipeline rank encodes a share, gathered)",
    )
    sum_format: str = setting(
        "fp32", "format in which gradients of image tokens are summed over layers and ranks: fp32 or compute"
    )

    def __post_init__(self) -> None:
        check_bounds("encoder", self)
        check_choice("encoder", self, "placement", PLACEMENTS)
        check_choice("encoder", self, "sum_format", ("fp32", "compute"))
        if self.dim % self.heads:
            raise ConfigError(
                "encoder.heads", f"{self.heads} does not divide dim {self.dim}", "choose a divisor of dim"
            )

    @property
    def placed(self) -> str:
        """Placement of an encoder that exists; empty for a text model."""
        return self.placement if self.layers else ""
