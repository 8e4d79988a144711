"""The evaluation loop: the loss of the present weights on held-out data, every N steps, on all ranks.

It changes nothing that trains: the same batches each time, forwards without gradients, weights gathered again after it.
"""

import dataclasses
import time
from typing import Final

from reftrain.data.batches import Loader
from reftrain.execute.forward_only import ForwardExecutor
from reftrain.execute.loss import global_loss, global_valid_tokens
from reftrain.rank.events import Evaluation
from reftrain.train.trainer import Trainer

_OTHER_SEED: Final = 1 << 40
"""Added to the seed of synthetic documents: these are held out."""


class Evaluator:
    """Evaluates a trainer. Constructed on every rank at the same time."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.config = trainer, trainer.config.evaluation
        data, mesh = trainer.config.data, trainer.mesh
        held_out = dataclasses.replace(data, files=self.config.files, shuffle=False)
        if data.source == "synthetic":
            held_out = dataclasses.replace(data, seed=data.seed + _OTHER_SEED)
        self.loader = Loader(held_out, trainer.config.model.vocab_size, mesh.dp.size, mesh.dp.index)
        mail = trainer.executor.mail
        self.executor = ForwardExecutor(
            trainer.schedule, trainer.stages, mail.down, mail.up, trainer.executor.pool
        )

    def after_step(self, step: int) -> None:
        """Evaluate when it is due after this step (counted from 0), and hand the figures to the hooks."""
        if (step + 1) % self.config.every:
            return
        trainer = self.trainer
        trainer.hooks.evaluation_begin(step)
        begin = time.perf_counter()
        loss, valid = self._loss()
        trainer.hooks.evaluation_end(Evaluation(step, loss, valid, time.perf_counter() - begin))

    def _loss(self) -> tuple[float, int]:
        """Return the mean loss in nats a token, and the count of tokens that have a target."""
        trainer, mesh = self.trainer, self.trainer.mesh
        total, count = 0.0, 0
        for number in range(self.config.batches):
            micro_batches = self.loader.step(number)
            own = sum(batch.valid for batch in micro_batches)
            valid = global_valid_tokens(own, mesh.dp, trainer.device)
            sums = self.executor.run([trainer.cutter.cut(batch) for batch in micro_batches], valid)
            total += global_loss(sums, valid, mesh.dp_cp, mesh.pp, trainer.device) * valid
            count += valid
        for stage in trainer.stages.values():
            stage.release_gathered()
        return total / count, count
