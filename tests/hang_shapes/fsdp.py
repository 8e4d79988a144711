"""FSDP2 and HSDP with tensor and context parallelism as torchtitan does them, and DDP."""

from tests.hang_shapes.calls import Program, StepEnd
from tests.hang_shapes.writer import Job, Writer

FORWARD_US = 300.0
BACKWARD_US = 600.0


def groups(job: Job) -> None:
    """Make the groups of a device mesh."""
    made, mesh = job.groups, job.mesh
    made.add_ranks("world", "default_pg", [tuple(range(mesh.world))])
    made.add("tp", "mesh_tp", ("tp",))
    made.add("cp", "mesh_cp", ("cp",))
    made.add("shard", "mesh_dp_shard_cp", ("cp", "dp"))
    made.add("replicate", "mesh_dp_replicate", ("rep",))
    made.add("loss", "mesh_dp_cp", ("cp", "dp", "rep"))


class Rank(Writer):
    """A rank's program."""

    def step(self, number: int) -> None:
        """One step."""
        count = self.job.micro_batches_of(self.rank)
        for batch in range(count):
            self.forward()
            self.backward(last=batch == count - 1)
        for layer in range(self.job.layers):
            self.wait(f"reduced{layer}")
        self.call("shard", "all_reduce", (), dtype="Float", where="clip_grad_norm_")
        self.call("replicate", "all_reduce", (), dtype="Float", where="clip_grad_norm_")
        self.call("tp", "all_reduce", (), dtype="Float", where="clip_grad_norm_")
        self.compute(150)
        self.call("loss", "all_reduce", (), dtype="Float", where="dist_mean")
        self.sync()
        if number % 2:
            self.call("world", "all_reduce", (1,), dtype="Byte", where="barrier")
            self.sync()
        self.add(StepEnd(number))

    def gather(self, layer: int) -> None:
        """All-gather a layer's parameters."""
        size = len(group.ranks) if (group := self.job.groups.get("shard", self.rank)) else 1
        shape = (self.job.hidden * 512 // size + 64 * layer,)
        self.call("shard", "_all_gather_base", shape, key=f"param{layer}", where=f"unshard.layers.{layer}")

    def forward(self) -> None:
        """A forward pass; the next layer's parameters are gathered meanwhile."""
        self.gather(0)
        for layer in range(self.job.layers):
            if layer + 1 < self.job.layers:
                self.gather(layer + 1)
            self.wait(f"param{layer}")
            self.layer("forward", FORWARD_US)

    def layer(self, where: str, us: float) -> None:
        """A layer in one direction."""
        job = self.job
        part = (1, max(job.tokens // job.mesh.size("tp") // job.mesh.size("cp"), 1), job.hidden)
        self.call("tp", "_all_gather_base", part, where=f"attention.{where}")
        self.call("cp", "_all_gather_base", part, where=f"context_parallel.{where}")
        self.compute(us)
        self.call(
            "tp", "_reduce_scatter_base", (part[0] * job.mesh.size("tp"), *part[1:]), where=f"mlp.{where}"
        )

    def backward(self, *, last: bool) -> None:
        """A backward pass with its reductions."""
        for layer in reversed(range(self.job.layers)):
            self.gather(layer)
            self.wait(f"param{layer}")
            self.layer("backward", BACKWARD_US)
            shape = (self.job.hidden * 512 + 64 * layer,)
            self.call(
                "shard",
                "_reduce_scatter_base",
                shape,
                dtype="Float",
                key=f"grad{layer}",
                where="post_backward",
            )
            if last:
                self.call(
                    "replicate",
                    "all_reduce",
                    shape,
                    dtype="Float",
                    key=f"reduced{layer}",
                    after=f"grad{layer}",
                )
            self.wait(f"grad{layer}")


def ddp_groups(job: Job) -> None:
    """Make DDP's only group, and one for the loss."""
    job.groups.add_ranks("world", "default_pg", [tuple(range(job.mesh.world))])
    job.groups.add_ranks("log", "undefined", [tuple(range(job.mesh.world))])


class Plain(Writer):
    """DDP."""

    def step(self, number: int) -> None:
        """One step."""
        for _ in range(self.job.micro_batches_of(self.rank) - 1):
            self.compute(FORWARD_US + BACKWARD_US)
        self.call("world", "broadcast", (self.job.hidden,), dtype="Float", where="sync_buffers")
        self.compute(FORWARD_US)
        for bucket in range(self.job.layers):
            self.compute(BACKWARD_US / self.job.layers)
            shape = (self.job.hidden * 1024 + bucket,)
            self.call("world", "all_reduce", shape, dtype="Float", key=f"bucket{bucket}", where="backward")
        for bucket in range(self.job.layers):
            self.wait(f"bucket{bucket}")
        self.compute(100)
        self.call("log", "all_reduce", (1,), dtype="Float", where="log_loss")
        if number % 2 == 0:
            self.sync()
        self.add(StepEnd(number))


def program(job: Job, rank: int) -> Program:
    """FSDP2's program of a rank."""
    writer = Rank(job, rank)
    for number in range(job.steps):
        writer.step(number)
    return writer.program


def ddp_program(job: Job, rank: int) -> Program:
    """DDP's program of a rank."""
    writer = Plain(job, rank)
    for number in range(job.steps):
        writer.step(number)
    return writer.program
