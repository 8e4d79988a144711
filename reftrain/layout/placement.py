"""The part of each global tensor that a rank holds, by the tensor's name, declared by mesh and model.

The trainer's capture and the replay both take placements from this table, so that runs of any mesh are compared on
the same global tensors. Activations are global over the step's batch: (sequences of the batch, tokens, …).
"""

from dataclasses import dataclass, replace

from numerics.schema import Box
from reftrain.config.run import RunConfig
from reftrain.layout.declaration import Declaration, Parameter
from reftrain.layout.grid import EVERYWHERE, Grid, Seat

RESIDUAL = frozenset(
    {
        "tok_embeddings.out",
        "attention_norm.out",
        "attention.out",
        "ffn_norm.out",
        "feed_forward.out",
        "out",
        "norm.out",
    }
)
ENTERED = frozenset({"attention.qkv.in", "feed_forward.w1.in"})
PARTIAL = frozenset({"attention.wo.out", "feed_forward.w2.out"})
INNER = frozenset({"feed_forward.w1.out", "feed_forward.w3.out", "feed_forward.w2.in"})
HEADS = frozenset({"attention.qkv.queries", "attention.qkv.keys", "attention.qkv.values"})
IMAGE_TOKENS = "encoder.out"
OF_IMAGES = frozenset(
    f"attention.qkv.{part}" for part in ("wk.out", "wv.out", "k_norm.out", "keys", "values")
)
PROJECTED = frozenset(f"attention.qkv.{part}.out" for part in ("wq", "wk", "wv"))
ROUTED = "feed_forward.router.out"
INPUTS = frozenset({"tokens", "targets", "positions", "rope", "mask"})


@dataclass(frozen=True)
class Placement:
    """A local tensor's place: `shape` of the global tensor, `boxes` in the local tensor's order.

    `replica` counts the ranks that hold the very same part, `partial` names the addend of a sum.
    """

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    replica: int = 0
    partial: str | None = None


@dataclass(frozen=True)
class _Cut:
    """The part of one dimension that is no sequence: offset, size, whole."""

    offset: int
    size: int
    whole: int


def is_activation(name: str) -> bool:
    """Whether the table knows an activation of this name."""
    return _kind(name) != ""


def is_repeated(name: str, config: RunConfig) -> bool:
    """Return whether an activation repeats another under a second name, with nothing between: tp = 1, or annotated."""
    if config.mesh.annotated and _kind(name) in {"attention.qkv.in", "attention.wo.out"}:
        return True
    return config.mesh.tp == 1 and _kind(name) in (ENTERED if config.model.bias else ENTERED | PARTIAL)


def _kind(name: str) -> str:
    """Return the name within its layer (layers.3.attention.out: attention.out), or an empty text for an unknown one."""
    part = name.split(".", 2)[2] if name.startswith("layers.") and name.count(".") >= 2 else name
    known = part in RESIDUAL | ENTERED | PARTIAL | INNER | HEADS | {"attention.wo.in"}
    known |= part == ROUTED or (part.startswith("attention.qkv.") and part.endswith(".out"))
    return part if known or part in {"output.logits", "output.out", IMAGE_TOKENS} else ""


class Placements:
    """The places of one run's tensors."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.grid, self.declared = Grid(config.mesh), Declaration(config)
        self.parameters: dict[str, tuple[int, Parameter]] = {
            p.name: (stage, p) for stage in self.declared.numbers for p in self.declared.in_order(stage)
        }

    def _sequence(self, seat: Seat, *, pieces: bool) -> list[tuple[int, int]]:
        """Stretches (offset, size) of the sequence that the seat holds; of its tensor rank's piece if asked."""
        length, cp = self.config.data.seq_len, self.config.mesh.cp
        if cp == 1:
            stretches = [(0, length)]
        else:
            width = length // (2 * cp)
            stretches = [(seat.cp * width, width), ((2 * cp - 1 - seat.cp) * width, width)]
        if not pieces:
            return stretches
        size = length // cp // self.config.mesh.tp
        first, end, at, out = seat.tp * size, (seat.tp + 1) * size, 0, []
        for offset, width in stretches:
            low, high = max(first, at), min(end, at + width)
            if low < high:
                out.append((offset + low - at, high - low))
            at += width
        return out

    def _place(
        self, seat: Seat, micro_batch: int, cuts: list[_Cut | str], *, pieces: bool = False
    ) -> Placement:
        """Return the placement of a tensor with the dimensions `batch`, `sequence` or cuts."""
        data = self.config.data
        first = seat.dp * (data.batch_size // self.config.mesh.dp) + micro_batch * data.micro_batch_size
        shape = tuple(
            data.batch_size if cut == "batch" else data.seq_len if isinstance(cut, str) else cut.whole
            for cut in cuts
        )
        boxes = []
        for offset, size in self._sequence(seat, pieces=pieces) if "sequence" in cuts else [(0, 0)]:
            sides = [
                (first, data.micro_batch_size)
                if cut == "batch"
                else (offset, size)
                if isinstance(cut, str)
                else (cut.offset, cut.size)
                for cut in cuts
            ]
            boxes.append(Box(tuple(o for o, _ in sides), tuple(n for _, n in sides)))
        return Placement(shape, tuple(boxes))

    def _heads(self, seat: Seat, *, keys: bool, width: int) -> tuple[_Cut, int]:
        """Cut of a dimension of heads, `width` elements each, and the number of this rank's copy."""
        model, tp = self.config.model, self.config.mesh.tp
        count = model.kv_heads if keys else model.heads
        copies = max(tp // count, 1)
        each = max(count // tp, 1)
        return _Cut(seat.tp // copies * each * width, each * width, count * width), seat.tp % copies

    def activation(self, name: str, seat: Seat, micro_batch: int, *, grad: bool = False) -> Placement:
        """Placement of an activation or of its gradient; KeyError for an unknown name."""
        part, mesh, model = _kind(name), self.config.mesh, self.config.model
        if not part:
            raise KeyError(name)
        addend = f"tp={seat.tp}" if mesh.tp > 1 else None
        if part == "output.out":
            return Placement((), (Box((), ()),), seat.tp, None if mesh.cp == 1 else f"cp={seat.cp}")
        if mesh.annotated and part in RESIDUAL | PROJECTED | {"attention.wo.in"}:
            return self._annotated(part, seat, micro_batch, addend, grad=grad)
        if part in RESIDUAL:
            place = self._place(
                seat,
                micro_batch,
                ["batch", "sequence", _Cut(0, model.dim, model.dim)],
                pieces=self.declared.sequence_parallel,
            )
            return place if self.declared.sequence_parallel else replace(place, replica=seat.tp)
        if part in ENTERED | PARTIAL:
            place = self._place(seat, micro_batch, ["batch", "sequence", _Cut(0, model.dim, model.dim)])
            is_addend = grad if part in ENTERED else not grad
            return replace(place, partial=addend) if is_addend else replace(place, replica=seat.tp)
        if part == IMAGE_TOKENS:
            return self._of_images(seat, micro_batch, _Cut(0, model.dim, model.dim), grad=grad)
        if name.startswith("layers.") and model.crosses(int(name.split(".")[1])) and part in OF_IMAGES:
            return self._image_keys(part, seat, micro_batch, grad=grad)
        if part == ROUTED:
            place = self._columns(seat, micro_batch, _Cut(0, model.experts, model.experts))
            return replace(place, partial=addend) if grad and addend else replace(place, replica=seat.tp)
        return self._inside(part, seat, micro_batch, grad=grad)

    def _annotated(self, part: str, seat: Seat, number: int, addend: str | None, *, grad: bool) -> Placement:
        """Placement under SPMD 2-D: residuals cut by features, projections addends, attention's output whole."""
        model, size = self.config.model, self.config.model.dim // self.config.mesh.tp
        if part in RESIDUAL:
            return self._columns(seat, number, _Cut(seat.tp * size, size, model.dim))
        keys = part in OF_IMAGES  # the names of keys and values
        rows = (model.kv_heads if keys else model.heads) * model.head_dim
        place = self._columns(seat, number, _Cut(0, rows, rows))
        is_addend = grad if part == "attention.wo.in" else not grad
        return replace(place, partial=addend) if is_addend else replace(place, replica=seat.tp)

    def _of_images(self, seat: Seat, micro_batch: int, cut: _Cut, *, grad: bool) -> Placement:
        """Placement of image tokens: whole on tensor and context ranks, with a context rank's part of the gradient."""
        mesh, tokens = self.config.mesh, self.config.encoder.tokens
        place = self._place(seat, micro_batch, ["batch", _Cut(0, tokens, tokens), cut])
        if grad and mesh.cp > 1:
            return replace(place, replica=seat.tp, partial=f"cp={seat.cp}")
        return replace(place, replica=seat.tp + mesh.tp * seat.cp)

    def _image_keys(self, part: str, seat: Seat, micro_batch: int, *, grad: bool) -> Placement:
        """Placement of keys and values of image tokens: cut over tp by heads, whole on every context rank."""
        model, mesh, tokens = self.config.model, self.config.mesh, self.config.encoder.tokens
        images, wide = _Cut(0, tokens, tokens), part in {"attention.qkv.wk.out", "attention.qkv.wv.out"}
        cut, copy = self._heads(seat, keys=True, width=model.head_dim if wide else 1)
        each = _Cut(0, model.head_dim, model.head_dim)
        order: list[_Cut | str] = ["batch", images, cut] if wide else ["batch", images, cut, each]
        if part in HEADS:
            order = ["batch", cut, images, each]
        place = self._place(seat, micro_batch, order)
        copied = mesh.tp > model.kv_heads
        parts = {"cp": mesh.cp > 1, "tp": copied}
        axes = [f"{axis}={getattr(seat, axis)}" for axis, is_partial in parts.items() if is_partial]
        if grad and axes:
            return replace(place, partial=",".join(axes))
        return replace(place, replica=copy + mesh.tp * seat.cp)

    def _inside(self, part: str, seat: Seat, micro_batch: int, *, grad: bool) -> Placement:
        """Placement of what is cut over tp by features or heads."""
        model, tp = self.config.model, self.config.mesh.tp
        if part in INNER:
            size = model.ffn_dim // tp
            return self._columns(seat, micro_batch, _Cut(seat.tp * size, size, model.ffn_dim))
        if part == "output.logits":
            rows = self.declared.vocab_rows
            first = min(seat.tp * rows, model.vocab_size)
            return self._columns(
                seat, micro_batch, _Cut(first, min(rows, model.vocab_size - first), model.vocab_size)
            )
        name = part.removeprefix("attention.qkv.").removesuffix(".out")
        if name == "wqkv":
            size = model.kv_heads * (model.heads // model.kv_heads + 2) * model.head_dim
            return self._columns(seat, micro_batch, _Cut(seat.tp * (size // tp), size // tp, size))
        keys = name in {"wk", "wv", "k_norm", "keys", "values"}
        if name in {"wq", "wk", "wv", "attention.wo.in"}:
            cut, copy = self._heads(seat, keys=keys, width=model.head_dim)
            place = self._columns(seat, micro_batch, cut)
        else:
            cut, copy = self._heads(seat, keys=keys, width=1)
            whole = _Cut(0, model.head_dim, model.head_dim)
            order: list[_Cut | str] = ["batch", "sequence", cut, whole]
            if part in HEADS:
                order = ["batch", cut, "sequence", whole]
            place = self._place(seat, micro_batch, order)
        if keys and grad and tp > model.kv_heads:
            return replace(place, partial=f"tp={seat.tp}")
        return replace(place, replica=copy)

    def _columns(self, seat: Seat, micro_batch: int, cut: _Cut) -> Placement:
        return self._place(seat, micro_batch, ["batch", "sequence", cut])

    def given(self, name: str, seat: Seat, micro_batch: int) -> Placement:
        """Placement of what a rank computes on: tokens, targets, positions, rope or mask."""
        data, width = self.config.data, self.config.model.head_dim // 2
        cuts: dict[str, list[_Cut | str]] = {
            "tokens": ["batch", "sequence"],
            "targets": ["batch", "sequence"],
            "positions": ["sequence"],
            "rope": [_Cut(0, 2, 2), "sequence", _Cut(0, width, width)],
            "mask": ["batch", _Cut(0, 1, 1), "sequence", _Cut(0, data.seq_len, data.seq_len)],
        }
        place = self._place(seat, micro_batch, cuts[name])
        mesh = self.config.mesh
        copies = seat.tp + mesh.tp * seat.pp
        if name in {"positions", "rope"}:
            copies += mesh.tp * mesh.pp * (seat.dp * self.config.micro_batches + micro_batch)
        return replace(place, replica=copies)

    def read(self, seat: Seat) -> Placement:
        """Placement of all sequences that a rank reads in a step, whole: (sequences, tokens)."""
        data, mesh = self.config.data, self.config.mesh
        rows = data.batch_size // mesh.dp
        box = Box((seat.dp * rows, 0), (rows, data.seq_len))
        copies = seat.tp + mesh.tp * (seat.cp + mesh.cp * seat.pp)
        return Placement((data.batch_size, data.seq_len), (box,), copies)

    def parameter(self, name: str, seat: Seat) -> Placement:
        """Placement of a rank's shard of a parameter, of its reduced gradient, or of its optimiser state."""
        stage, parameter = self.parameters[name]
        groups = self.grid.shard_groups(seat.pp, seat.tp, parameter.dealt, whole=parameter.data_dim is None)
        replica, group = next((n, g) for n, g in enumerate(groups) if seat in g)
        shard = parameter.shard(len(group), group.index(seat))
        copies = self.config.mesh.tp if parameter.split is None else parameter.copies
        replica = replica * copies + seat.tp % copies
        if seat.pp != self.declared.pipeline.schedule.rank_of(stage):
            replica += (seat.pp + 1) * len(groups) * copies
        return Placement(parameter.shape, (_clipped(parameter, seat.tp, *shard),), replica)

    def local_gradient(self, name: str, seat: Seat) -> Placement:
        """Placement of a parameter's gradient as one rank computed it, before any reduction."""
        _, parameter = self.parameters[name]
        mesh = self.config.mesh
        box = _clipped(parameter, seat.tp, 0, 0, parameter.local_shape[0])
        copies = mesh.dp if parameter.dealt == EVERYWHERE else mesh.dp // mesh.ep
        axes = [(a, getattr(seat, a)) for a, size in (("dp", copies), ("cp", mesh.cp)) if size > 1]
        if parameter.sums and mesh.tp > 1:
            axes.append(("tp", seat.tp))
        partial = ",".join(f"{axis}={index}" for axis, index in axes) or None
        replica = seat.tp if parameter.split is None and not parameter.sums else 0
        return Placement(parameter.shape, (box,), replica, partial)


def _clipped(parameter: Parameter, tp: int, dim: int, first: int, count: int) -> Box:
    """Box of places `first` to `first + count` on a dimension of a tensor rank's piece, without padding."""
    offsets = [side.start for side in parameter.piece(tp)]
    sizes = [side.stop - side.start for side in parameter.piece(tp)]
    kept = max(min(first + count, sizes[dim]) - first, 0)
    offsets[dim] += min(first, sizes[dim])
    sizes[dim] = kept
    return Box(tuple(offsets), tuple(sizes))
