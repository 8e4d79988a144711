"""Megatron: tensor, context, expert and pipeline parallelism (1F1B), and its distributed optimizer."""

from tests.hang_shapes.calls import Program, StepEnd
from tests.hang_shapes.writer import Job, Writer

FORWARD_US = 400.0
BACKWARD_US = 800.0
EXPERTS = 4
"""Ranks that share experts."""


def groups(job: Job) -> None:
    """Make all groups in Megatron's order."""
    made, mesh = job.groups, job.mesh
    made.add_ranks("world", "default_pg", [tuple(range(mesh.world))])
    made.add("dp", "DATA_PARALLEL_GROUP", ("dp",))
    made.add("dp_cp", "DATA_PARALLEL_GROUP_WITH_CP", ("cp", "dp"))
    made.add("cp", "CONTEXT_PARALLEL_GROUP", ("cp",))
    made.add("mp", "MODEL_PARALLEL_GROUP", ("tp", "pp"))
    made.add("tp", "TENSOR_MODEL_PARALLEL_GROUP", ("tp",))
    made.add("pp", "PIPELINE_MODEL_PARALLEL_GROUP", ("pp",))
    ends = [(ranks[0], ranks[-1]) for ranks in mesh.partition(("pp",)) if len(ranks) > 1]
    made.add_ranks("embedding", "EMBEDDING_GROUP", ends)
    shared = [
        ranks[at : at + EXPERTS]
        for ranks in mesh.partition(("cp", "dp"))
        for at in range(0, len(ranks), EXPERTS)
    ]
    made.add_ranks("ep", "EXPERT_MODEL_PARALLEL_GROUP", shared)


class Rank(Writer):
    """A rank's program."""

    @property
    def stage(self) -> int:
        """Its pipeline stage."""
        return self.coords.get("pp", 0)

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return self.job.mesh.size("pp")

    def peer(self, by: int) -> int:
        """The rank some stages on."""
        return self.job.mesh.rank({**self.coords, "pp": self.stage + by})

    def step(self, number: int) -> None:
        """One step."""
        job = self.job
        count = job.micro_batches_of(self.rank)
        warm = min(self.stages - self.stage - 1, count)
        for batch in range(warm):
            self.exchange("forward_step", receive=-1)
            self.forward(batch)
            self.exchange("forward_step", send=1)
        steady = count - warm
        if steady:
            self.exchange("forward_step", receive=-1)
        for batch in range(steady):
            self.forward(batch)
            self.exchange("steady_state", send=1, receive=1)
            self.backward(last=batch == count - 1)
            if batch < steady - 1:
                self.exchange("steady_state", send=-1, receive=-1)
            else:
                self.exchange("steady_state", send=-1)
        for batch in range(warm):
            self.exchange("backward_step", receive=1)
            self.backward(last=batch == warm - 1)
            self.exchange("backward_step", send=-1)
        self.update(number)
        self.add(StepEnd(number))

    def exchange(self, where: str, *, send: int = 0, receive: int = 0) -> None:
        """Messages to and from neighbours, where they exist; even ranks send first."""
        shape = (self.job.tokens // self.job.mesh.size("cp"), 1, self.job.hidden)
        wanted = [
            (sends, self.peer(by), shape)
            for sends, by in ((True, send), (False, receive))
            if by and 0 <= self.stage + by < self.stages
        ]
        if self.stage % 2 and not self.job.batched:
            wanted.reverse()
        self.messages("pp", wanted, where, batched=self.job.batched)
        if wanted and self.job.batched and self.job.syncs:
            self.sync()

    def forward(self, batch: int) -> None:
        """A micro-batch's forward pass on this stage."""
        if self.stage in {0, self.stages - 1}:
            self.call("tp", "broadcast", (5,), dtype="Long", where="get_batch")
            self.call("tp", "broadcast", (self.job.tokens,), dtype="Long", where="get_batch")
        for _ in range(self.job.layers):
            self.layer("forward", FORWARD_US)
        if self.stage == self.stages - 1:
            self.call(
                "tp", "all_reduce", (self.job.tokens, 1), dtype="Float", where="vocab_parallel_cross_entropy"
            )
            if not batch:
                self.call("dp_cp", "all_reduce", (1,), dtype="Float", where="average_losses")

    def layer(self, where: str, us: float) -> None:
        """A layer in one direction."""
        job = self.job
        part = (job.tokens // job.mesh.size("tp") // job.mesh.size("cp"), 1, job.hidden)
        whole = (job.tokens // job.mesh.size("cp"), 1, job.hidden)
        self.call("tp", "_all_gather_base", part, where=f"attention.{where}")
        self.compute(us * 0.4)
        self.context(part, where)
        self.call("tp", "_reduce_scatter_base", whole, where=f"attention.{where}")
        self.call("tp", "_all_gather_base", part, where=f"mlp.{where}")
        self.experts(part, where)
        self.compute(us * 0.6)
        self.experts(part, where)
        self.call("tp", "_reduce_scatter_base", whole, where=f"mlp.{where}")

    def context(self, part: tuple[int, ...], where: str) -> None:
        """Attention over the parts of a sequence: a ring, or an exchange."""
        group = self.job.groups.get("cp", self.rank)
        if group is None:
            return
        if not self.job.ring:
            self.call("cp", "all_to_all", part, where=f"ulysses.{where}")
            return
        place, size = group.ranks.index(self.rank), len(group.ranks)
        after, before = group.ranks[(place + 1) % size], group.ranks[place - 1]
        for _ in range(size - 1):
            self.messages("cp", [(True, after, part), (False, before, part)], f"ring.{where}", batched=True)
            self.compute(60)

    def experts(self, part: tuple[int, ...], where: str) -> None:
        """Tokens go to their experts, or back."""
        if not self.job.dropless:
            return
        self.call("ep", "all_to_allv", part, where=f"token_dispatcher.{where}")
        if self.job.syncs:
            self.sync()

    def backward(self, *, last: bool) -> None:
        """A micro-batch's backward pass; the last one reduces gradients."""
        for layer in range(self.job.layers):
            self.layer("backward", BACKWARD_US)
            if last:
                shape = (self.job.hidden * 1024,)
                parts = 3 if self.job.coalesced else 0
                self.call(
                    "dp_cp",
                    "_reduce_scatter_base",
                    shape,
                    dtype="Float",
                    key=f"grad{layer}",
                    where="bucket",
                    parts=parts,
                )

    def update(self, number: int) -> None:
        """The optimizer's step."""
        for layer in range(self.job.layers):
            self.wait(f"grad{layer}")
        if self.stage in {0, self.stages - 1}:
            self.call("embedding", "all_reduce", (32000, self.job.hidden), where="finalize_model_grads")
        self.call("mp", "all_reduce", (1,), dtype="Float", where="clip_grad_norm")
        self.sync()
        self.compute(200)
        for layer in range(self.job.layers):
            self.call(
                "dp_cp", "_all_gather_base", (self.job.hidden * 128,), key=f"param{layer}", where="optimizer"
            )
        for layer in range(self.job.layers):
            self.wait(f"param{layer}")
        if number % 2:
            self.call("world", "all_reduce", (1,), dtype="Float", where="training_log")
            self.sync()
        if number % 3 == 1:
            self.call("dp_cp", "gather", (64,), dtype="Float", where="timers_log")


def program(job: Job, rank: int) -> Program:
    """The whole program of a rank."""
    writer = Rank(job, rank)
    for number in range(job.steps):
        writer.step(number)
    return writer.program
