"""One rank of a job with an asynchronous schedule: PipeDream or PipeDream-2BW.

Each stage steps its own optimiser when the table says, with gradients of the weights its forwards used; no
update waits for other stages' gradients. A training step is m micro-batches; at its end the ranks meet to
add up its loss and the norm of its last update's gradient, for the records alone.
"""

import torch

from reftrain.config.run import RunConfig
from reftrain.execute.gradients import local_square, root_of_sum, sum_partial_gradients
from reftrain.execute.loss import global_loss
from reftrain.execute.pipeline import BufferPool
from reftrain.execute.pipeline_asynchronous import AsynchronousExecutor, Fed
from reftrain.rank.comm import Axis
from reftrain.rank.events import Segment
from reftrain.rank.hooks import HookList
from reftrain.schedule.registry import SCHEMES
from reftrain.train.optimizer import learning_rate
from reftrain.train.trainer import Gradients, Trainer


def make_trainer(config: RunConfig, hooks: HookList, device: torch.device) -> Trainer:
    """Build the trainer that the schedule needs."""
    kind = Trainer if SCHEMES[config.pipeline.schedule].synchronous else AsynchronousTrainer
    return kind(config, hooks, device)


class AsynchronousTrainer(Trainer):
    """Steps inside the pipeline: `compute_gradients` has updated the weights when it returns."""

    executor: AsynchronousExecutor

    def _make_executor(self, axes: tuple[Axis, Axis], pool: BufferPool) -> AsynchronousExecutor:
        self._square: torch.Tensor | None = None
        self._valid: dict[int, int] = {}
        m = self.config.micro_batches
        return AsynchronousExecutor(
            self.schedule, self.stages, axes, pool, self.hooks, m, self._feed, self._update
        )

    def _feed(self, step: int) -> Fed:
        """Load a step's micro-batches and count the valid tokens that each one's update sees."""
        self.hooks.data_begin(step)
        micro_batches = self.loader.step(step)
        self.hooks.data_end(step)
        counts = torch.tensor([b.valid for b in micro_batches], dtype=torch.int64, device=self.device)
        valid = [int(n) for n in self.mesh.dp.all_reduce(counts, "valid_tokens").tolist()]
        every = self.schedule.update_every
        sums = [max(1, sum(valid[i // every * every : (i // every + 1) * every])) for i in range(len(valid))]
        self._valid[step] = max(1, sum(valid))
        return Fed([self.cutter.cut(batch) for batch in micro_batches], sums)

    def _update(self, number: int, micro_batch: int) -> None:
        """Make the optimiser step of a stage after its backward of `micro_batch`."""
        stage, config = self.stages[number], self.config
        sum_partial_gradients([stage], self.axes)
        self._square = local_square([stage], self.mesh.tp, self.mesh.replica_index)
        step = micro_batch // config.micro_batches
        with self.hooks.segment(Segment("optimizer", -1, "step", 0)):
            rate = learning_rate(config.optimizer, step, config.steps)
            self.optimizer.step(stage.local_gradients(), rate, None)
        stage.clear_gradients()

    def compute_gradients(self, step: int) -> Gradients:
        """Run a training step, updates and all; the norm is that of its last update's gradient."""
        sums = self.executor.run_step(step)
        mesh, valid = self.mesh, self._valid.pop(step)
        if self._square is None:
            raise AssertionError("a step makes at least one update")
        norm = root_of_sum(self._square, (mesh.dp_cp, mesh.tp, mesh.pp))
        loss = global_loss(sums, valid, mesh.dp_cp, mesh.pp, self.device, stacked=self.stacked)
        return Gradients(loss, valid, norm)

    def apply_gradients(self, step: int, norm: torch.Tensor) -> float:
        """Return the learning rate; the updates are made."""
        del norm
        return learning_rate(self.config.optimizer, step, self.config.steps)
