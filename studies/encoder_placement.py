"""The image encoder's share of a step by its placement: on the first pipeline rank, or replicated on all of them.

Source: "Scaling Llama 3 Training" (ISCA'25), section 3.2.1. The paper gives the share before and after the
change (33 %, 8 %) and the images (448 and 672 pixels), but neither its mesh nor its encoder; both are chosen here.
`python -m studies.encoder_placement` prints the table of docs/multimodal.md, and with run folders what they measured.
"""

import gzip
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reftrain.config.encoder import PLACEMENTS, EncoderConfig
from reftrain.config.presets import ENCODER_PRESETS, MODEL_PRESETS
from reftrain.config.run import MeshConfig, ModelConfig
from reftrain.cost.hardware import Hardware, load_hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.shapes import layer_counts
from reftrain.plan.projection import durations, encoder_seconds
from reftrain.plan.step_time import time_step

PAPER = {"before": 0.33, "replicated": 0.08}
"""Published shares of the encoder's computation."""
PATCH_PIXELS = 14
SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = 192, 4, 32
"""Text tokens of a sequence (the paper: below 200), sequences of a micro-batch, micro-batches of a step and replica."""
IMAGES = (448, 672)
TEXTS = {"70b": (100, 4), "405b": (160, 8)}
"""Text models by preset: layers with a cross-attention layer after every four, and pipeline ranks."""


@dataclass(frozen=True)
class Share:
    """One row: text model, pixels of an image's side, mesh, step in seconds, shares of encoding and of exchange."""

    text: str
    pixels: int
    placement: str
    mesh: MeshConfig
    step_s: float
    encoding: float
    exchange: float


def job(text: str, pixels: int, placement: str) -> Job:
    """Return the job of a row: frozen self-attention layers, trained cross-attention layers, ViT-H, tp 8."""
    layers, pp = TEXTS[text]
    shape = {**MODEL_PRESETS[text], "layers": layers, "cross_every": 4, "frozen": True}
    model = ModelConfig(preset=text, **shape)  # type: ignore[arg-type]
    encoder = EncoderConfig(**ENCODER_PRESETS["70b_vision"])  # type: ignore[arg-type]
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


def share(made: Job, text: str, pixels: int, hardware: Hardware) -> Share:
    """Return the row of a job: the encoder's seconds on a rank that holds it over those of the projected step."""
    costs = cost_model_of(made, hardware)
    seconds = encoder_seconds(made, costs)
    step = time_step(made.lowered, durations(made, costs)).seconds
    own = -(-made.micro_batches // len(made.lowered.encoders))
    encoding = own * (seconds.forward + seconds.backward)
    return Share(
        text,
        pixels,
        made.encoder.placement,
        made.mesh,
        step,
        encoding / step,
        (seconds.share + seconds.collect) / step,
    )


def rows(hardware: Hardware) -> Iterator[Share]:
    """Yield all rows: text models, images, placements."""
    for text, pixels, placement in itertools.product(TEXTS, IMAGES, PLACEMENTS):
        yield share(job(text, pixels, placement), text, pixels, hardware)


def measured(run: Path) -> dict[int, float]:
    """Return the share of its traced steps that each traced rank of a run spent in the encoder."""
    shares = {}
    for path in sorted((run / "trace").glob("rank*.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        spans = [(e["name"], e["dur"]) for e in events if e.get("cat") == "user_annotation" and "dur" in e]
        steps = sum(length for name, length in spans if name.startswith("ProfilerStep"))
        encoding = sum(length for name, length in spans if name.startswith("PP:E"))
        shares[int(path.name.removeprefix("rank").partition(".")[0])] = encoding / steps
    return shares


def main(runs: Sequence[str] = ()) -> None:
    """Print the measured shares of run folders, or the table where none is given."""
    for run in runs:
        found = ", ".join(f"rank {rank} {part:.1%}" for rank, part in measured(Path(run)).items())
        print(f"{run}: {found}")  # noqa: T201 - the answer
    if runs:
        return
    print("| text | image | mesh | placement | step s | encoding | exchange of tokens | paper |")  # noqa: T201 - the table
    print("|---|---|---|---|---|---|---|---|")  # noqa: T201 - as above
    for row in rows(load_hardware("h100")):
        mesh = f"tp {row.mesh.tp}, pp {row.mesh.pp}, dp {row.mesh.dp}"
        paper = f"{PAPER[row.placement]:.0%}" if row.pixels == max(IMAGES) else ""
        cells = f"{row.step_s:.2f} | {row.encoding:.1%} | {row.exchange:.1%} | {paper}"
        print(f"| {row.text} | {row.pixels}² | {mesh} | {row.placement} | {cells} |")  # noqa: T201 - as above


if __name__ == "__main__":
    main(sys.argv[1:])
