"""A job on described hardware: its sizes, its axes on the nodes, the seconds of its messages and collectives."""

from functools import cached_property

from reftrain.config.run import EncoderConfig, MeshConfig, ModelConfig
from reftrain.cost.hardware import Hardware
from reftrain.cost.links import AxisLinks, axis_links, collective_seconds, message_seconds
from reftrain.cost.shapes import Shapes


class PlacedJob:
    """One job on one kind of hardware.

    `micro_batch_size` counts sequences of `seq_len` tokens; `recompute` is `none`, `selective` or `full`;
    `compute_bytes` and `reduce_bytes` are bytes an element of activations and weights, and of reduced
    gradients; `pairs` is the mean number of (query, key) pairs of a sequence that attend (by default all
    causal pairs, S·(S+1)/2); with `accumulates`, gradients of several micro-batches are summed before
    they are reduced; `encoder` is the image encoder of a multimodal model; with `offload` the host holds the
    optimizer's state and steps.
    """

    def __init__(
        self,
        hardware: Hardware,
        model: ModelConfig,
        mesh: MeshConfig,
        *,
        seq_len: int,
        micro_batch_size: int = 1,
        recompute: str = "none",
        compute_bytes: int = 2,
        reduce_bytes: int = 4,
        pairs: float | None = None,
        accumulates: bool = True,
        encoder: EncoderConfig | None = None,
        offload: bool = False,
    ) -> None:
        self.hardware, self.model, self.mesh = hardware, model, mesh
        self.seq_len, self.micro_batch_size, self.recompute = seq_len, micro_batch_size, recompute
        self.compute_bytes, self.reduce_bytes = compute_bytes, reduce_bytes
        self.pairs = seq_len * (seq_len + 1) / 2 if pairs is None else pairs
        self.accumulates, self.offload = accumulates, offload
        self.encoder_config = encoder or EncoderConfig()
        self.shapes = Shapes(model, mesh.tp, mesh.ep)
        self.whole_shapes = Shapes(model, mesh.tp)
        self._links: dict[str, AxisLinks] = {}

    def links(self, axis: str) -> AxisLinks:
        """Place an axis (tp, cp, pp, dp, dp_cp, world) on the nodes."""
        if axis not in self._links:
            self._links[axis] = axis_links(self.hardware, self.mesh, axis)
        return self._links[axis]

    def collective(self, axis: str, op: str, nbytes: float) -> float:
        """Seconds of a collective; `nbytes` is its larger buffer (gathered tensor, input of a reduction)."""
        return collective_seconds(self.links(axis), op, nbytes)

    @property
    def message_bytes(self) -> int:
        """Bytes of an activation, or its gradient, between two pipeline stages."""
        return self.local_tokens * self.model.dim * self.compute_bytes

    def token_bytes(self, *, gradient: bool) -> int:
        """Bytes of the image tokens beside an activation, or of their gradient; 0 where none travel with it."""
        if self.encoder_config.placed != "inside":
            return 0
        return self.image_tokens * self.model.dim * self.token_width(gradient=gradient)

    def token_width(self, *, gradient: bool) -> int:
        """Bytes an element of image tokens as they are sent, or of their gradients."""
        wide = gradient and self.encoder_config.sum_format == "fp32"
        return max(self.compute_bytes, 4) if wide else self.compute_bytes

    @property
    def image_tokens(self) -> int:
        """Image tokens of a micro-batch, the same on every tensor and context rank."""
        return self.micro_batch_size * self.encoder_config.tokens

    @cached_property
    def message_seconds(self) -> float:
        """Seconds of a message between neighbouring pipeline ranks."""
        return message_seconds(self.links("pp"), self.message_bytes)

    def token_seconds(self, *, gradient: bool) -> float:
        """Seconds of the message of image tokens that follows an activation, or a gradient's; 0 without one."""
        nbytes = self.token_bytes(gradient=gradient)
        return message_seconds(self.links("pp"), nbytes) if nbytes else 0.0

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one context rank: B · S/cp."""
        return self.micro_batch_size * self.seq_len // self.mesh.cp

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations outside the tensor-parallel regions are split over tp, by tokens."""
        return self.mesh.splits_sequence

    @property
    def local_tokens(self) -> int:
        """Tokens of a rank outside the tensor-parallel regions; annotated, the same elements cut by features."""
        split = self.sequence_parallel or self.mesh.annotated
        return self.tokens // self.mesh.tp if split else self.tokens

    @property
    def mean_pairs(self) -> float:
        """(Query, key) pairs of a micro-batch on one context rank, were they evenly spread."""
        return self.micro_batch_size * self.pairs / self.mesh.cp
