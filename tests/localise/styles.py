"""What the frameworks do in a step: Megatron-LM, torchtitan (FSDP2), DeepSpeed's pipe, and plain DDP."""

from random import Random

from tests.localise.builder import Builder
from tests.localise.calls import Call
from tests.localise.faults import Faults
from tests.localise.job import US, Job
from tests.localise.schedule import Plan, deepspeed, lowered, one_f_one_b

FULL = (
    (("norm", 0.03), ("gemm", 0.2), ("attention", 0.24), ("gemm", 0.08)),
    (("norm", 0.03), ("gemm", 0.2), ("elementwise", 0.04), ("gemm", 0.18)),
)
COARSE = ((("gemm", 0.3), ("attention", 0.25)), (("gemm", 0.45),))
"""Halves of a layer (attention, feed-forward): kernels and their shares of its time."""


def plans(job: Job) -> list[Plan]:
    """Plans of all stages."""
    if job.stages == 1:
        order = [(kind, 0, m) for m in range(job.micro) for kind in "FB"]
        return [order]
    if job.style == "deepspeed":
        return deepspeed(job.stages, job.micro)
    if job.schedule == "1f1b" and job.chunks == 1 and job.batched:
        return one_f_one_b(job.stages, job.micro)
    return lowered(job.schedule, job.stages, job.micro, job.chunks, job.fuse and job.batched)


def programs(job: Job, faults: Faults) -> dict[int, list[Call]]:
    """The program of every rank: a warm-up step, the recorded steps, and one more."""
    whole = plans(job)
    found = {}
    for rank in range(job.layout.world):
        builder = Builder(job, rank, faults)
        style = Style(builder, whole[builder.stage])
        for step in range(job.steps + 2):
            builder.step = step - 1
            style.one_step()
        builder.pause(0, "end")
        found[rank] = builder.calls
    return found


class Style:
    """Emits the steps of one rank."""

    def __init__(self, builder: Builder, plan: Plan) -> None:
        self.b, self.job, self.plan = builder, builder.job, plan
        self.grads = "dpcp" if self.job.layout.size("cp") > 1 else "dp"
        self.last = {(k, c): m for k, c, m in [a for a in plan if a[0] in "FB"]}
        self.first = {(k, c): m for k, c, m in reversed([a for a in plan if a[0] in "FB"])}
        self.pending: list[int | None] = []
        self.sends: list[int] = []
        self.gathered: dict[tuple, int | None] = {}
        self.routed = 0

    def one_step(self) -> None:
        """One training step."""
        b, job = self.b, self.job
        b.thread = "main"
        b.pause(30 * US, "step")
        self.extra("startup")
        b.pause(b.host(300 * US) + b.faults.stalls(b.rank, b.step, "late_data"), "data")
        b.kernel("elementwise", 40 * US)
        b.stumble = b.faults.stalls(b.rank, b.step, "stumble")
        stall = b.faults.stalls(b.rank, b.step, "pauses")
        computed = 0
        if job.has("graphs"):
            self.extra("pauses")
            b.note, stall = "graph", 0
        for item in self.plan:
            if item[0] == "X":
                self.talk(item[1])
                continue
            computed += 1
            if stall and computed == 1 + len(self.plan) // 3:
                b.pause(stall, "gc")
                stall = 0
            (self.forward if item[0] == "F" else self.backward)(item[1], item[2])
        if stall:
            b.pause(stall, "gc")
        b.thread, b.note = "main", ""
        self.finish()

    def extra(self, kind: str) -> None:
        """Host time that only some steps have."""
        ns = self.b.faults.stalls(self.b.rank, self.b.step, kind)
        if ns:
            self.b.pause(ns, kind)

    def talk(self, messages: list[tuple]) -> None:
        """Exchange activations or gradients with neighbouring stages."""
        b, job = self.b, self.job
        b.thread = "main"
        coords = dict(b.coords)
        resolved = [(send, job.layout.rank(coords | {"pp": peer})) for send, peer, _ in messages]
        batched = job.batched and not (job.style == "titan" and job.torch > (2, 11) and len(resolved) == 1)
        handles = []
        for some in [resolved] if batched else [[message] for message in resolved]:
            handles += b.exchange(some, batched=batched, family=self.family(*some[0]))
        for handle, message in zip(handles, [resolved] if batched else [[m] for m in resolved], strict=True):
            if job.wait_sends or any(not send for send, _ in message):
                b.wait(handle)
            else:
                self.sends.append(handle)
        if job.device_sync:
            b.sync()

    def family(self, send: bool, peer: int) -> str:
        """The group of a message: DeepSpeed's is the world, as is one way of Megatron's two overlapped stages."""
        job = self.job
        if job.style == "deepspeed":
            return "world"
        source = self.b.stage if send else job.layout.coords(peer)["pp"]
        one_way = job.style == "megatron" and not job.batched and job.stages == 2
        return "world" if one_way and source == 0 else "pp"

    def layers(self, chunk: int) -> int:
        """Layers of this rank's chunk; the last has one less, and the head instead."""
        return self.job.layers - (1 if self.is_last(chunk) else 0)

    def is_last(self, chunk: int) -> bool:
        """Whether the head is in this chunk."""
        return self.b.stage == self.job.stages - 1 and chunk == self.job.chunks - 1

    def forward(self, chunk: int, micro: int) -> None:
        """Forward of one micro-batch."""
        b = self.b
        b.thread = "main"
        if b.stage == 0 and chunk == 0:
            b.kernel("elementwise", self.job.costs.layer * 0.01)
        for layer in range(self.layers(chunk)):
            self.params(chunk, layer, micro, "F")
            self.beside()
            self.half(0, self.documents(micro), "F")
            (self.expert if self.moe(layer) else self.half)(1, 1.0, "F")
        if self.is_last(chunk):
            b.kernel("gemm", self.job.costs.layer * 0.98)

    def backward(self, chunk: int, micro: int) -> None:
        """Backward of one micro-batch."""
        b = self.b
        b.thread = "backward"
        if self.is_last(chunk):
            b.kernel("gemm", self.job.costs.layer * 1.96)
        for layer in reversed(range(self.layers(chunk))):
            self.params(chunk, layer, micro, "B")
            self.beside()
            (self.expert if self.moe(layer) else self.half)(1, 2.0, "B")
            self.half(0, 2.0 * self.documents(micro), "B")
            self.grad(chunk, layer, micro)
        b.thread = "main"

    def half(self, which: int, scale: float, way: str) -> None:
        """Half a layer with the communication of tensor and context parallelism around it."""
        b, costs, parallel = self.b, self.job.costs, self.job.sequence_parallel
        transfer, elements = costs.layer * costs.tp_share / 2, costs.message_elements
        if which == 0:
            b.collective("all_gather", "cp", elements // 4, transfer * 0.6)
        if parallel:
            b.collective("all_gather", "tp", elements, transfer)
        for what, share in (COARSE if self.job.coarse else FULL)[which]:
            b.kernel(what, costs.layer * share * scale)
        if parallel:
            b.collective("reduce_scatter", "tp", elements, transfer)
        else:
            b.collective("all_reduce", "tp", elements, transfer * 2)
        if which == 0 and way == "B":
            b.collective("reduce_scatter", "cp", elements // 4, transfer * 0.6)

    def beside(self) -> None:
        """Communication on a stream of its own for which nobody waits, where this rank has it."""
        for family, share in self.b.faults.beside(self.b.rank, self.b.step):
            elements, transfer = self.job.costs.message_elements, self.job.costs.layer * share
            self.b.collective("broadcast", family, elements, transfer, sync=False, side="beside")

    def moe(self, layer: int) -> bool:
        """Whether a layer's feed-forward is a mixture of experts."""
        return self.job.experts and layer % 2 == 0

    def documents(self, micro: int) -> float:
        """Factor on attention: documents of a replica's micro-batch are long or short."""
        if not self.job.documents:
            return 1.0
        where = (self.b.coords["dpi"], self.b.coords["dpo"], self.b.step, micro)
        return Random(f"{self.job.seed}-documents-{where}").uniform(0.7, 1.5)

    def expert(self, which: int, scale: float, way: str) -> None:
        """Experts: tokens go where the router sends them, and each rank's work follows its tokens."""
        b, costs = self.b, self.job.costs
        group = b.groups["ep"]
        self.routed += 1
        random = Random(f"{self.job.seed}-route-{group}-{b.step}-{self.routed}")
        weights = [random.lognormvariate(0, 0.1 if self.job.hot else 0.35) for _ in group]
        if self.job.hot:
            liked = Random(f"{self.job.seed}-liked-{group}")
            weights = [weight * liked.lognormvariate(0, 0.35) for weight in weights]
        mine = group.index(b.rank)
        share = weights[mine] * len(group) / sum(weights)
        sent = tuple(round(costs.message_elements * w / sum(weights)) for w in weights)
        taken = tuple(sent[mine] for _ in group)
        transfer = costs.layer * costs.tp_share * max(weights) * len(group) / sum(weights)
        b.collective("all_to_all", "ep", 0, transfer, splits=(sent, taken))
        b.kernel("gemm", costs.layer * 0.45 * scale * share)
        b.collective("all_to_all", "ep", 0, transfer, splits=(taken, sent))
        del which, way

    def params(self, chunk: int, layer: int, micro: int, way: str) -> None:
        """FSDP2: gather a layer's parameters one layer ahead, and wait for this layer's."""
        job = self.job
        if job.style != "titan" or job.layout.size("dpi", "cp") == 1:
            return
        if job.stages > 1 and (way == "B" or micro != self.first["F", chunk]):
            return
        count = self.layers(chunk)
        ahead = layer + 1 if way == "F" else layer - 1
        for wanted in (layer, ahead):
            if 0 <= wanted < count and (way, chunk, wanted) not in self.gathered:
                self.gathered[way, chunk, wanted] = self.b.collective(
                    "all_gather",
                    "shard",
                    job.costs.message_elements,
                    job.costs.gather_layer,
                    sync=False,
                    side="fsdp_gather" if job.torch > (2, 7) else None,
                )
        self.b.wait(self.gathered[way, chunk, layer])

    def grad(self, chunk: int, layer: int, micro: int) -> None:
        """Reduce the gradients of a layer once its last micro-batch is through; overlapped."""
        job = self.job
        if (job.stages > 1 or job.style != "titan") and micro != self.last["B", chunk]:
            return
        op = {"titan": "reduce_scatter", "megatron": "reduce_scatter_coalesced"}.get(job.style, "all_reduce")
        family = "shard" if job.style == "titan" else self.grads
        if job.style == "deepspeed":
            self.pending.append(None)
            return
        side = "fsdp_scatter" if job.style == "titan" and job.torch > (2, 7) else None
        elements, transfer = job.costs.message_elements, job.costs.grad_layer
        self.pending.append(self.b.collective(op, family, elements, transfer, sync=False, side=side))
        if job.style == "titan" and job.layout.size("dpo") > 1:
            caller = side or f"nccl:{family}"
            part = elements // job.layout.size("dpi", "cp")
            self.pending.append(
                self.b.collective("all_reduce", "replicate", part, transfer / 3, sync=False, caller=caller)
            )

    def finish(self) -> None:
        """Gradients, optimizer, and the end of the step."""
        b, job = self.b, self.job
        if job.style == "titan":
            self.gathered.clear()
        if job.style == "deepspeed":
            for _ in self.pending:
                b.collective("all_reduce", "dp", job.costs.message_elements, job.costs.grad_layer)
        for handle in [*self.pending, *self.sends]:
            b.wait(handle)
        self.pending, self.sends = [], []
        b.kernel("elementwise", 60 * US)
        b.collective("all_reduce", "mp", 1, 15 * US)
        if job.end_sync:
            b.sync("compute", "cudaStreamSynchronize")
        for _ in range(2):
            b.kernel("adam", job.costs.layer * 0.12)
        if job.style in {"megatron", "deepspeed"}:
            b.collective("all_gather", self.grads, job.costs.message_elements, job.costs.gather_layer)
        if job.end_sync:
            b.sync("compute", "cudaStreamSynchronize")
        self.extra("checkpoint")
