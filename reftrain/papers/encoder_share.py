"""The image encoder's share of a step by its placement: in or before the first pipeline rank, or on all of them.

Source: "Scaling Llama 3 Training" (ISCA'25), section 3.2.1. The paper gives the share before and after the change
(33 %, 8 %) and the images (448 and 672 pixels), but neither the text model nor mesh and encoder; these are chosen here.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Final

from reftrain.config.encoder import PLACEMENTS
from reftrain.config.file import load
from reftrain.config.presets import ENCODER_PRESETS
from reftrain.config.run import MeshConfig
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.shapes import layer_counts
from reftrain.papers.figure import Line
from reftrain.plan.projection import durations, encoder_seconds
from reftrain.plan.step_time import time_step

PAPER: Final = {"before": 33.0, "replicated": 8.0}
"""Published shares of the encoder's computation with the larger images, % of the step."""
PATCH_PIXELS: Final = 14
SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = 192, 4, 32
"""Text tokens of a sequence (the paper: below 200), sequences of a micro-batch, micro-batches of a step and replica."""
IMAGES: Final = (448, 672)
TEXTS: Final = {"405b": (160, 8), "70b": (100, 4)}
"""Text models by preset: layers with a cross-attention layer after every four, and pipeline ranks."""
WHY: Final = {
    "405b": "the paper names neither text model nor mesh and encoder: 405b is the model of most of its experiments, "
    "the encoder is ViT-H, and the paper's had more layers by then",
    "70b": "as above; a smaller text model leaves the same encoder a larger share",
}


@dataclass(frozen=True)
class Share:
    """Shares of the step of a rank that holds the encoder: encoding, and what handing over tokens adds; its seconds."""

    encoding: float
    exchange: float
    step_s: float


def job(text: str, pixels: int, placement: str) -> Job:
    """Return the job of a row: frozen self-attention layers, trained cross-attention layers, ViT-H, tp 8."""
    layers, pp = TEXTS[text]
    shape = {"preset": text, "layers": layers, "cross_every": 4, "frozen": True}
    shapes = load(None, {"model": shape, "encoder": ENCODER_PRESETS["70b_vision"]})
    model, encoder = shapes.model, shapes.encoder
    virtual = model.layers // model.group // pp
    return Job(
        model=model,
        mesh=MeshConfig(tp=8, pp=pp, dp=8),
        seq_len=SEQ_LEN,
        micro_batches=MICRO_BATCHES,
        layers=layer_counts(model.layers, pp * virtual, balanced=False, group=model.group),
        virtual=virtual,
        consecutive=pp,
        micro_batch_size=MICRO_BATCH,
        encoder=replace(encoder, placement=placement, tokens=(pixels // PATCH_PIXELS) ** 2),
    )


def share(made: Job, hardware: Hardware) -> Share:
    """Return the encoder's seconds on a rank that holds it, and those of the tokens' way, over those of the step."""
    costs = cost_model_of(made, hardware)
    times, seconds = durations(made, costs), encoder_seconds(made, costs)
    step = time_step(made.lowered, times).seconds
    message = costs.message_seconds
    at_once = replace(
        times, encoder=replace(seconds, share=0.0, collect=0.0), message=message, message_back=message
    )
    without = time_step(made.lowered, at_once).seconds
    own = max(len(made.lowered.encoded_by(rank)) for rank in made.lowered.encoders)
    encoding = own * (seconds.forward + seconds.backward)
    return Share(encoding / step, (step - without) / step, step)


def encoder_share(hardware: Hardware) -> list[Line]:
    """Return the share of encoding for text models, images and placements, and with large images of the exchange."""
    lines = []
    for text, pixels, placement in itertools.product(TEXTS, IMAGES, PLACEMENTS):
        found, large = share(job(text, pixels, placement), hardware), pixels == max(IMAGES)
        what = f"{text}, {pixels}², {placement}"
        published = PAPER.get(placement) if large else None
        why = WHY[text] if published else ""
        lines.append(Line(f"{what}: encoding", "%", published, 100 * found.encoding, why=why))
        if large:
            lines.append(Line(f"{what}: exchange of tokens", "%", None, 100 * found.exchange))
            lines.append(Line(f"{what}: step", "s", None, found.step_s))
    return lines
