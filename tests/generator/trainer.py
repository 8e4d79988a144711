"""The work of one rank in a training step: layers, pipeline schedule, gradient reduction, optimizer."""

from tests.generator.program import LOAD, RECV, SEND, SYNC, RankBuilder, RankProgram
from tests.generator.spec import Job

BACKWARD = 2.0


def shares(attention: float) -> dict[str, float]:
    """Shares of a layer's forward time by kernel, summing to one."""
    rest = {"norm1": 0.04, "qkv": 0.19, "proj": 0.15, "norm2": 0.04, "up": 0.30, "act": 0.04, "down": 0.24}
    return {name: share * (1 - attention) for name, share in rest.items()} | {"attn": attention}


class Trainer:
    """Writes one rank's program."""

    def __init__(self, job: Job, builder: RankBuilder) -> None:
        self.job, self.b = job, builder
        self.at = job.mesh.coords(builder.rank)
        self.stage, self.stages = self.at["pp"], job.mesh.sizes["pp"]
        self.layers = job.layers[self.stage]
        self.share = shares(job.attention)
        ends = self.stages > 1 and self.stage in (0, self.stages - 1)
        self.weight = self.layers + ends  # embedding and head are as large as the layer they stand for
        self.first, self.last = self.stage == 0, self.stage == self.stages - 1
        self.gathers: dict[int, int] = {}  # layer: its parameter all-gather, to be waited for at first use

    def run(self) -> RankProgram:
        for step in range(self.job.steps):
            self.b.step = step
            self.one_step()
        return self.b.out

    # -- one step
    def one_step(self) -> None:
        job, b = self.job, self.b
        b.micro_batch, b.backward = 0, False
        if job.loads_per_step:
            self.load()
        if job.dp_mode == "overlap" and b.step > 0:
            for layer in range(self.layers):
                self.gather_parameters(layer)
        actions = self.afab if job.schedule == "afab" else self.one_f_one_b
        actions()
        b.micro_batch, b.backward = -1, False
        self.finish()

    def load(self) -> None:
        """Fetch a batch if this rank loads one; broadcast it if tp rank 0 loads for its peers."""
        job, b = self.job, self.b
        ends = job.loader == "ends"
        if ends and not (self.first or self.last):
            return
        if not ends or self.at["tp"] == 0:
            b.emit(LOAD, 0, job.load_ns, (), "load")
        if ends:
            b.collective("tp", "broadcast", 0.5 * job.tp_ns, "tp")

    def finish(self) -> None:
        """Reduce gradients, their norm, step the optimizer, gather parameters."""
        job, b = self.job, self.b
        if job.tied_embedding and (self.first or self.last):
            b.collective("embd", "allreduce", job.dp_ns, "embd")
        if job.dp_mode == "exposed":
            for _ in range(2):
                b.collective(job.dp_group, "_reduce_scatter_base", job.dp_ns * self.weight, "dp")
        elif job.dp_mode == "overlap":
            for index in self.reduces:
                b.pending += (index,)
        if job.grad_norm != "none":
            b.compute("norm", 0.05 * job.layer_ns)
            b.collective(job.grad_norm, "allreduce", 20_000.0, job.grad_norm)
        for _ in range(2):
            b.compute("opt", 0.25 * job.layer_ns)
        if job.dp_mode == "exposed":
            b.collective(job.dp_group, "_allgather_base", job.dp_ns * self.weight, "dp")
        b.emit(SYNC, 0, 0.0, b.tail + b.pending, "item")

    # -- pipeline schedules
    def afab(self) -> None:
        for way, count in (("f", self.job.micro_batches), ("b", self.job.micro_batches)):
            for micro_batch in range(count):
                self.receive(way, micro_batch)
                self.work(way, micro_batch)
                self.send(way, micro_batch)

    def one_f_one_b(self) -> None:
        count = self.job.micro_batches
        warm = min(self.stages - self.stage - 1, count)
        blocking = self.job.p2p == "blocking"
        for i in range(warm):
            self.receive("f", i)
            self.work("f", i)
            self.send("f", i)
        if count > warm:
            self.receive("f", warm)
        for i in range(count - warm):
            self.work("f", warm + i)
            both = self.send("f", warm + i, defer=blocking)
            self.receive("b", i, together=both)
            self.work("b", i)
            more = i < count - warm - 1
            both = self.send("b", i, defer=blocking and more)
            if more:
                self.receive("f", warm + i + 1, together=both)
        for i in range(count - warm, count):
            self.receive("b", i)
            self.work("b", i)
            self.send("b", i)

    def peer(self, step: int) -> int:
        return self.job.mesh.rank(self.at | {"pp": self.stage + step})

    def receive(self, way: str, micro_batch: int, together: tuple[int, ...] = ()) -> None:
        """Receive, then make compute wait for it and for the send issued `together` with it."""
        b = self.b
        b.micro_batch, b.backward = micro_batch, way == "b"
        wait = together
        if not (self.first if way == "f" else self.last):
            peer = self.peer(-1 if way == "f" else 1)
            wait += (b.message(RECV, way, peer, self.job.pp_ns, self.job.p2p_group, together),)
        b.pending += wait

    def send(self, way: str, micro_batch: int, *, defer: bool = False) -> tuple[int, ...]:
        """Send. If p2p is blocking, compute waits for the send, here or (`defer`) at the receive that follows."""
        b = self.b
        b.micro_batch, b.backward = micro_batch, way == "b"
        if self.last if way == "f" else self.first:
            return ()
        index = (
            b.message(SEND, way, self.peer(1 if way == "f" else -1), self.job.pp_ns, self.job.p2p_group),
        )
        if defer:
            return index
        if self.job.p2p == "blocking":
            b.pending += index
        return ()

    # -- layers
    def work(self, way: str, micro_batch: int) -> None:
        b = self.b
        b.micro_batch, b.backward = micro_batch, way == "b"
        final = micro_batch == self.job.micro_batches - 1
        if way == "f":
            if not self.job.loads_per_step:
                self.load()
            self.ends("embed", first=True)
            for layer in range(self.layers):
                self.parameters(layer, micro_batch)
                self.forward()
            self.ends("head", first=False)
            return
        if final or micro_batch == 0:
            self.reduces: list[int] = []
        self.ends("head_b", first=False)
        for layer in reversed(range(self.layers)):
            if self.job.dp_mode == "fsdp":
                self.prefetched(layer, -1)
            self.backward()
            if self.job.dp_mode == "fsdp" or (self.job.dp_mode == "overlap" and final):
                self.reduce_gradients()
        self.ends("embed_b", first=True)
        if self.job.dp_mode == "fsdp" and final:
            b.pending += tuple(self.reduces)

    def parameters(self, layer: int, micro_batch: int) -> None:
        """Wait for a layer's parameters if they are gathered; with FSDP, prefetch the next layer's."""
        if self.job.dp_mode == "fsdp":
            self.prefetched(layer, 1)
        elif layer in self.gathers and micro_batch == 0:
            self.b.pending += (self.gathers.pop(layer),)

    def prefetched(self, layer: int, direction: int) -> None:
        """Gather the parameters of this layer and of the layer used next; compute waits for those of this layer."""
        for ahead in (layer, layer + direction):
            if 0 <= ahead < self.layers and ahead not in self.gathers:
                self.gather_parameters(ahead)
        if layer in self.gathers:
            self.b.pending += (self.gathers.pop(layer),)

    def gather_parameters(self, layer: int) -> None:
        index = self.b.collective(self.job.dp_group, "_allgather_base", self.job.dp_ns, "dp", wait=False)
        if index is not None:
            self.gathers[layer] = index

    def reduce_gradients(self) -> None:
        index = self.b.collective(self.job.dp_group, "_reduce_scatter_base", self.job.dp_ns, "dp", wait=False)
        if index is not None:
            self.reduces.append(index)

    def tp(self, op: str) -> None:
        self.b.collective("tp", op, self.job.tp_ns, "tp")

    def forward(self) -> None:
        b, t, share = self.b, self.job.layer_ns, self.share
        b.compute("norm", t * share["norm1"])
        self.tp("_allgather_base")
        b.compute("gemm", t * share["qkv"])
        b.collective("cp", "_allgather_base", self.job.cp_ns, "cp")
        b.compute("attn", t * share["attn"])
        b.compute("gemm", t * share["proj"])
        self.tp("_reduce_scatter_base")
        b.compute("norm", t * share["norm2"])
        self.tp("_allgather_base")
        b.compute("gemm", t * share["up"])
        b.compute("act", t * share["act"])
        b.compute("gemm", t * share["down"])
        self.tp("_reduce_scatter_base")

    def backward(self) -> None:
        b, t, share = self.b, BACKWARD * self.job.layer_ns, self.share
        self.tp("_allgather_base")
        b.compute("dgrad", t * share["down"] / 2)
        b.compute("wgrad", t * share["down"] / 2)
        b.compute("act_b", t * share["act"])
        b.compute("dgrad", t * share["up"] / 2)
        b.compute("wgrad", t * share["up"] / 2)
        self.tp("_reduce_scatter_base")
        b.compute("norm_b", t * share["norm2"])
        self.tp("_allgather_base")
        b.compute("dgrad", t * share["proj"])
        b.compute("attn_b", t * share["attn"])
        b.collective("cp", "_reduce_scatter_base", self.job.cp_ns, "cp")
        b.compute("dgrad", t * share["qkv"])
        self.tp("_reduce_scatter_base")
        b.compute("norm_b", t * share["norm1"])

    def ends(self, label: str, *, first: bool) -> None:
        """Embedding on the first stage, head and loss on the last; each stands for the layer its stage lacks."""
        if not (self.first if first else self.last):
            return
        job, b = self.job, self.b
        backward = label.endswith("_b")
        cost = job.layer_ns * (BACKWARD if backward else 1) * (1 + job.head_bias)
        if self.stages == 1 or (job.end_work == "light_last" and not first):
            b.compute(label, 0.15 * cost)
            return
        # Vocabulary-parallel embedding and loss talk as often as a layer does, so that a stage is worth as much
        # in compute as in communication whichever layers it holds.
        for op in ("_allgather_base", "_reduce_scatter_base" if first else "allreduce") * 2:
            b.compute(label, 0.2 * cost)
            self.tp(op)
        b.collective("cp", "allreduce", job.cp_ns, "cp")
        b.compute("norm_b" if backward else ("act" if first else "loss"), 0.2 * cost)
