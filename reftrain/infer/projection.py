"""Latency and throughput of an engine's layouts on described hardware: prefill, decode, memory. Needs no torch.

A kernel takes the longer of its arithmetic and its traffic to memory: a decode step reads all weights and the whole
cache for one token of each request, a prefill computes. Collectives cost what they cost in training. Source of the
roofline: Williams et al. 2009; of decoding's traffic: Pope et al. 2022, "Efficiently Scaling Transformer Inference",
section 2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reftrain.config.run import MeshConfig, ModelConfig
from reftrain.cost.hardware import GIB, Hardware
from reftrain.cost.links import axis_links, collective_seconds
from reftrain.cost.shapes import Shapes
from reftrain.layout_documents import InferDocument
from reftrain.plan.meshes import divisors

KERNELS_A_LAYER = 12
"""Launches of a layer: two norms, three projections of attention, RoPE, cache, core, output, two feed-forward products
and what joins them, as the trainer's modules have them without fusion beyond the core."""


@dataclass(frozen=True)
class Serving:
    """What is asked of an engine: `batch` requests at once on the whole machine, prompts and answers in tokens.

    `weight_bytes` an element of the weights (1 for int8, read as such and computed in 16 bits), `cache_bytes` one
    of the cache.
    """

    model: ModelConfig
    devices: int
    batch: int
    prompt: int
    generate: int
    weight_bytes: int = 2
    cache_bytes: int = 2


@dataclass(frozen=True)
class Layout:
    """Tensor ranks of a replica, replicas, and whether weights are cut over both axes (SPMD 2-D)."""

    tp: int
    replicas: int
    annotated: bool = False

    @property
    def name(self) -> str:
        """`tp=8 x 2 replicas`, or `2-D (2, 8)` as (data, model)."""
        if self.annotated:
            return f"2-D ({self.replicas}, {self.tp})"
        return f"tp={self.tp} x {self.replicas}"


@dataclass(frozen=True)
class Projected:
    """A layout's figures: bytes of a device, seconds of one prompt's prefill and of one decode step, tokens a second.

    `tokens_per_s` counts generated tokens of the whole machine, prefill included in the time.
    """

    layout: Layout
    memory: float
    prefill_s: float
    decode_s: float
    tokens_per_s: float
    fits: bool


def layouts(asked: Serving) -> Iterator[Layout]:
    """Yield all layouts: tensor ranks that divide the heads, replicas up to the batch, and the 2-D ones."""
    model = asked.model
    for tp in divisors(asked.devices):
        data = asked.devices // tp
        if model.heads % tp or model.ffn_dim % tp or asked.batch % data:
            continue
        if model.kv_heads % tp == 0 or tp % model.kv_heads == 0:
            yield Layout(tp, data)
        if data > 1 and tp > 1 and not model.kv_heads % tp and not model.dim % data:
            yield Layout(tp, data, annotated=True)


def project(asked: Serving, layout: Layout, hardware: Hardware) -> Projected:
    """Return the figures of a layout; a cache of `prompt + generate` tokens a request is kept."""
    costs = _Costs(asked, layout, hardware)
    own = asked.batch // layout.replicas
    mean = asked.prompt + asked.generate / 2
    prefill, decode = costs.step(1, asked.prompt, asked.prompt / 2), costs.step(own, 1, mean)
    memory = costs.memory(own)
    seconds = own * prefill + asked.generate * decode
    rate = asked.batch * asked.generate / seconds
    return Projected(layout, memory, prefill, decode, rate, memory <= hardware.usable_bytes)


def table(found: Sequence[Projected], asked: Serving, hardware: Hardware) -> str:
    """Return the layouts as text: fitting ones first, each kind by throughput."""
    ordered = sorted(found, key=lambda p: (not p.fits, -p.tokens_per_s))
    rows: list[tuple[str, ...]] = [("layout", "GiB", "prefill ms", "ms a token", "tokens/s", "a device", "")]
    rows += [_row(one, asked, hardware) for one in ordered]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:-1], widths[1:-1], strict=True))]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    asks = f"{asked.batch} requests at once, prompts of {asked.prompt}, {asked.generate} tokens generated"
    return "\n".join([f"{asks}; {asked.devices} devices of {hardware.name}", *lines]) + "\n"


def _row(one: Projected, asked: Serving, hardware: Hardware) -> tuple[str, ...]:
    return (
        one.layout.name,
        f"{one.memory / GIB:.1f}",
        f"{1e3 * one.prefill_s:.1f}",
        f"{1e3 * one.decode_s:.2f}",
        f"{one.tokens_per_s:.0f}",
        f"{one.tokens_per_s / asked.devices:.1f}",
        "" if one.fits else f"does not fit {hardware.usable_bytes / GIB:.0f} GiB",
    )


def projection_document(found: Sequence[Projected], asked: Serving, hardware: Hardware) -> InferDocument:
    """Return the layouts as `reftrain.infer/1`, fastest first."""
    ordered = sorted(found, key=lambda p: (not p.fits, -p.tokens_per_s))
    return {
        "schema": "reftrain.infer/1",
        "measured": False,
        "hardware": hardware.name,
        "devices": asked.devices,
        "layouts": [
            {
                "tp": one.layout.tp,
                "replicas": one.layout.replicas,
                "sharding": "spmd_2d" if one.layout.annotated else "fsdp",
                "memory_bytes": round(one.memory),
                "prefill_s": one.prefill_s,
                "decode_s": one.decode_s,
                "tokens_per_s": one.tokens_per_s,
                "fits": one.fits,
            }
            for one in ordered
        ],
        "answers": [],
    }


class _Costs:
    """Seconds and bytes of one layout."""

    def __init__(self, asked: Serving, layout: Layout, hardware: Hardware) -> None:
        self.asked, self.layout, self.hardware = asked, layout, hardware
        self.shapes = Shapes(asked.model, layout.tp)
        mesh = MeshConfig(tp=layout.tp, dp=layout.replicas)
        self.model_axis, self.data_axis = (axis_links(hardware, mesh, axis) for axis in ("tp", "dp"))
        self.rate = hardware.device.memory_gb_s * 1e9 * hardware.efficiency.memory

    @property
    def parameters(self) -> int:
        """Parameters of a tensor rank."""
        return self.shapes.stage_parameters(self.asked.model.layers, first=True, last=True)

    def memory(self, requests: int) -> float:
        """Bytes of a device: weights (2-D: its shard, and one gathered layer) and the cache of its requests."""
        asked, weights = self.asked, self.parameters * self.asked.weight_bytes
        if self.layout.annotated:
            weights = weights // self.layout.replicas + self.shapes.layer_parameters * asked.weight_bytes
        tokens = requests * (asked.prompt + asked.generate)
        return weights + 2 * asked.model.layers * self.shapes.kv_columns * tokens * asked.cache_bytes

    def step(self, rows: int, tokens: int, context: float) -> float:
        """Seconds of one forward of `rows` sequences of `tokens` new tokens that each attend to `context` tokens."""
        asked, model, new = self.asked, self.asked.model, rows * tokens
        layer = self._product(self.shapes.layer_parameters, new) + self._attention(rows, tokens, context)
        layer = max(layer, KERNELS_A_LAYER * self.hardware.host.launch_us * 1e-6) + self._between(new)
        head = self._product(self.shapes.head_parameters, rows)
        gather = collective_seconds(self.model_axis, "all_gather", rows * model.vocab_size * 2)
        seconds = model.layers * layer + head + gather
        if self.layout.annotated:  # weights come for every use; the next layer's while this one computes
            whole = self.parameters * asked.weight_bytes
            seconds = max(seconds, collective_seconds(self.data_axis, "all_gather", whole))
        return seconds

    def _product(self, parameters: int, rows: int) -> float:
        hardware = self.hardware
        work = 2 * parameters * rows / (hardware.flops_per_s * hardware.efficiency.matmul)
        return max(work, parameters * self.asked.weight_bytes / self.rate)

    def _attention(self, rows: int, tokens: int, context: float) -> float:
        hardware = self.hardware
        work = 4 * self.shapes.attention_columns * rows * tokens * context
        read = 2 * self.shapes.kv_columns * rows * context * self.asked.cache_bytes
        rate = hardware.flops_per_s * hardware.efficiency.attention_forward
        return max(work / rate, read / self.rate)

    def _between(self, new: int) -> float:
        """Seconds of a layer's collectives over the model axis, of `new` tokens in 16 bits."""
        model, axis = self.asked.model, self.model_axis
        wide = new * model.dim * 2
        if not self.layout.annotated:
            return 2 * collective_seconds(axis, "all_reduce", wide)
        heads, keys = (new * n * model.head_dim * 2 for n in (model.heads, model.kv_heads))
        scatters = sum(collective_seconds(axis, "reduce_scatter", n) for n in (heads, keys, keys, wide))
        gathers = sum(collective_seconds(axis, "all_gather", n) for n in (heads, wide))
        return scatters + gathers + 2 * collective_seconds(axis, "all_reduce", 4 * new)
