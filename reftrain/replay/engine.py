"""Repeats a whole run: step after step, data-parallel rank after rank, stage after stage.

Forward and backward of the tensor and context ranks of a stage run in lock step, as do data-parallel ranks that share
out experts; other data-parallel ranks and pipeline stages only wait for each other, so that their order in time
changes nothing.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reftrain.config.run import RunConfig
from reftrain.layout.declaration import ENCODER, Declaration
from reftrain.layout.grid import Grid, Seat
from reftrain.replay.batch import MicroBatch, Reader, Share, shares
from reftrain.replay.first_values import State, first_state, local_values
from reftrain.replay.formats import Formats, Orders, Place, formats_of
from reftrain.replay.forward.spmd import AnnotatedRanks
from reftrain.replay.forward.stage import Passed, backward, leaves, run_stage
from reftrain.replay.gradients import (
    Accumulator,
    Reducer,
    Shards,
    StepResult,
    finish,
    sum_owners,
)
from reftrain.replay.images import CarriedTokens, ExchangedTokens, ImageTokens
from reftrain.replay.norm import global_norm
from reftrain.replay.observer import Moment, Observer
from reftrain.replay.optimizer import ShardOptimizer, clip_factor, learning_rate
from reftrain.replay.scalar_sums import rank_total, sum_losses, sum_valid
from reftrain.replay.stage_state import StageState, Taken
from reftrain.replay.virtual_ranks import Ranks, VirtualRanks

Weights = Mapping[Place, Sequence[Mapping[str, Tensor]]]
"""Gathered weights of each stage on each of its pipeline ranks, for every place on ep and tensor rank."""


class Replay:
    """A run in one process."""

    def __init__(
        self,
        config: RunConfig,
        orders: Orders,
        formats: Formats | None = None,
        observer: Observer | None = None,
        state: State | None = None,
    ) -> None:
        self.config, self.orders = config, orders
        self.formats = formats or formats_of(config.numerics.policy)
        self.observer = observer or Observer()
        self.grid, self.declared = Grid(config.mesh), Declaration(config)
        self.pipeline = self.declared.pipeline
        self.reducer = Reducer(config, self.grid, self.declared, self.formats, self.observer)
        mesh = config.mesh
        kind = AnnotatedRanks if mesh.annotated else VirtualRanks
        self.virtual_ranks = kind(
            mesh.tp,
            mesh.cp,
            mesh.ep,
            sequence_parallel=mesh.splits_sequence,
            sums_wide=config.numerics.tp_reduce == "fp32",
            observer=self.observer,
        )
        self.reader = Reader(config)
        self._begin(state or first_state(config))

    def _begin(self, state: State) -> None:
        """Make shards and optimisers from the state before the first step."""
        config, self.first_step = self.config, state.step
        wide = torch.promote_types(self.formats.parameter, torch.float32)
        self.shards = self._cut(state.parameters, self.formats.parameter)
        self.state = {kind: self._cut(named, wide) for kind, named in state.optimizer.items()}
        stages = [self.declared.in_order(stage) for stage in self.declared.numbers]
        self.frozen = {p.name for parameters in stages for p in parameters if p.frozen}
        self.matrices = {p.name for parameters in stages for p in parameters if len(p.shape) > 1}
        self.optimizers = {
            seat: ShardOptimizer(
                config.optimizer, self._trained(shards), self.matrices, self._state_of(seat), self.first_step
            )
            for seat, shards in self.shards.items()
        }
        self.observer.shards("param", "", self.shards)
        if state.optimizer:
            self._show_moments()

    def _trained(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: shard for name, shard in shards.items() if name not in self.frozen}

    def _state_of(self, seat: Seat) -> dict[str, dict[str, Tensor]]:
        return {kind: self._trained(shards[seat]) for kind, shards in self.state.items()}

    def _cut(self, values: Mapping[str, Tensor], dtype: torch.dtype) -> Shards:
        """Return every rank's shards of whole tensors by name."""
        mesh = self.config.mesh
        shards: Shards = {seat: {} for seat in self.grid.seats()}
        for stage in self.declared.numbers:
            for parameter, tp in itertools.product(self.declared.in_order(stage), range(mesh.tp)):
                if parameter.name not in values:
                    continue
                local = local_values(parameter, values[parameter.name], tp, dtype)
                for pp in self.pipeline.owners(stage):
                    whole = parameter.data_dim is None
                    for group in self.grid.shard_groups(pp, tp, parameter.dealt, whole=whole):
                        for index, seat in enumerate(group):
                            shard = local.narrow(*parameter.shard(len(group), index))
                            shards[seat][parameter.name] = shard.clone(memory_format=torch.contiguous_format)
        return shards

    def _weights(self, stage: int, pp: int) -> list[dict[str, Tensor]]:
        """Gathered weights of a stage on a pipeline rank in the compute format, for each place on ep and on tp.

        Weights that no rank shards are not gathered: they are cast where they are used.
        """
        mesh = self.config.mesh
        out: list[dict[str, Tensor]] = []
        for place, tp in itertools.product(range(mesh.ep), range(mesh.tp)):
            out.append({})
            for p in self.declared.in_order(stage, place):
                group = self.grid.shard_groups(pp, tp, p.dealt, whole=p.data_dim is None)[0]
                whole = torch.cat([self.shards[seat][p.name] for seat in group], dim=p.data_dim or 0)
                out[-1][p.name] = whole if p.data_dim is None else whole.to(self.formats.compute)
        return out

    def gradients(self, step: int) -> StepResult:
        """Run a step up to the global norm."""
        config, mesh = self.config, self.config.mesh
        now = self.observer.now = Moment(step, "forward")
        batches = [self.reader.micro_batches(step, dp) for dp in range(mesh.dp)]
        for dp, of_rank in enumerate(batches):
            tokens = torch.cat([batch.tokens for batch in of_rank])
            self.observer.read(dp, tokens, torch.cat([batch.targets for batch in of_rank]))
        valid = sum_valid(self.grid, batches, self.observer)
        weights = {place: self._weights(*place) for place in self.orders}
        taken: Taken = {}
        losses: dict[Seat, Tensor] = {}
        for dp in range(0, mesh.dp, mesh.ep):
            losses |= self._data_ranks(step, dp, batches[dp : dp + mesh.ep], weights, valid, taken)
        reduced: Shards = {seat: {} for seat in self.grid.seats()}
        now.phase, now.micro_batch = "reduce", -1
        for (stage, pp, number), whole in sorted(taken.items(), key=lambda item: (item[0][2], -item[0][0])):
            last = number + 1 == len(self.orders[stage, pp].reduce_after)
            for tp in range(mesh.tp):
                self.reducer.reduce(stage, pp, tp, whole, reduced, last=last)
        self._add_nothing(reduced)
        sum_owners(self.grid, self.declared, reduced, self.observer)
        finish(config, self.grid, self.declared, reduced, self.observer)
        reduced = self.observer.shards("param_grad", ".grad", reduced)
        norm = global_norm(self.grid, self.declared, reduced, self.observer)
        loss = sum_losses(self.grid, losses, self.observer) / valid
        norm = self.observer.scalar("grad_norm", norm)
        self.observer.scalar("loss", torch.tensor(loss, dtype=torch.float64), reported=True)
        return StepResult(loss, valid, norm, reduced)

    def _add_nothing(self, reduced: Shards) -> None:
        """Give zeros as gradients to an owner of a stage that no micro-batch reached."""
        for seat, shards in self.shards.items():
            for name, shard in self._trained(shards).items():
                reduced[seat].setdefault(name, torch.zeros_like(shard))

    def _data_ranks(
        self,
        step: int,
        dp: int,
        batches: Sequence[Sequence[MicroBatch]],
        weights: Weights,
        valid: int,
        taken: Taken,
    ) -> dict[Seat, Tensor]:
        """Run all micro-batches of the data-parallel ranks from `dp` on that share out experts, else of one rank.

        Puts accumulated gradients into `taken` and returns loss sums.
        """
        mesh = self.config.mesh
        stages = {
            place: StageState(order, [Accumulator(self.formats) for _ in range(len(self.virtual_ranks))])
            for place, order in self.orders.items()
        }
        images = self._images(dp)
        if images is not None:
            images.encode(step, weights)
        sums: dict[int, Ranks] = {}
        last = self.config.stages - 1
        ends = {pp: order.backwards for (stage, pp), order in self.orders.items() if stage == last}
        for number in itertools.chain.from_iterable(ends.values()):
            cut = [shares(self.config, of_rank[number], self.formats) for of_rank in batches]
            batch = [share for of_rank in cut for share in of_rank for _ in range(mesh.tp)]
            sums[number] = self._micro_batch(dp, number, batch, weights, valid, stages, taken, images)
        if images is not None:
            images.backward(
                lambda pp, number, local: stages[ENCODER, pp].accumulate(
                    self.grid.lock_step(dp, pp), (ENCODER, pp), number, local, taken
                )
            )
        totals = {}
        for (pp, numbers), place in itertools.product(ends.items(), range(len(self.virtual_ranks))):
            of_rank = [sums[number][place] for number in sorted(numbers)]
            stacked = self.config.numerics.loss_log == "stacked"
            totals[self.grid.lock_step(dp, pp)[place]] = rank_total(of_rank, stacked=stacked)
        return totals

    def _micro_batch(
        self,
        dp: int,
        number: int,
        batch: Sequence[Share],
        weights: Weights,
        valid: int,
        stages: Mapping[Place, StageState],
        taken: Taken,
        images: ImageTokens | None,
    ) -> Ranks:
        """Run forward and backward through all stages; return the loss sums of every rank in lock step."""
        now = self.observer.now
        now.dp, now.micro_batch = dp, number
        passed = self._forward(batch, weights, images)
        sums = passed[-1].outputs
        grads: Ranks | None = None
        for stage in reversed(range(self.config.stages)):
            here = passed.pop()
            now.phase, now.stage = "backward", stage
            if grads is None:
                backward([total / valid for total in here.outputs], None)
            else:
                grads = self.observer.message("pp", "G", stage + 1, stage, grads)
                now.stage = stage
                backward(here.outputs, grads)
            if images is not None:
                images.collect(stage, number)
                now.stage = stage
            grads = (
                None if here.inputs is None else [grad for t in here.inputs if (grad := t.grad) is not None]
            )
            at = stage, self.pipeline.rank_of(stage, number)
            stages[at].accumulate(self.grid.lock_step(dp, at[1]), at, number, here.leaves, taken)
        return [total.detach() for total in sums]

    def _images(self, dp: int) -> ImageTokens | None:
        if not self.config.encoder.layers:
            return None
        made = CarriedTokens if self.pipeline.schedule.carries_tokens else ExchangedTokens
        return made(self.config, self.declared, self.formats, self.observer, self.reader, dp)

    def _forward(self, batch: Sequence[Share], weights: Weights, images: ImageTokens | None) -> list[Passed]:
        """Run the micro-batch forward through all stages; return what each stage's backward needs."""
        config, now = self.config, self.observer.now
        passed: list[Passed] = []
        outputs: Ranks | None = None
        for stage, layers in enumerate(self.declared.stages()):
            now.phase, now.stage = "forward", stage
            pp = self.pipeline.rank_of(stage, now.micro_batch)
            held = weights[stage, pp]
            if outputs is not None:
                outputs = self.observer.message("pp", "A", stage - 1, stage, outputs)
            if images is not None:
                copies = images.of(stage, pp, now.micro_batch)
                batch = [replace(share, images=copy) for share, copy in zip(batch, copies, strict=True)]
            now.stage = stage
            self.observer.inputs(batch)
            inputs = None if outputs is None else leaves(outputs)
            tp, cp = config.mesh.tp, config.mesh.cp
            local = [
                {
                    n: w.detach().requires_grad_(n not in self.frozen)
                    for n, w in held[place // (tp * cp) * tp + place % tp].items()
                }
                for place in range(len(self.virtual_ranks))
            ]
            local = self.observer.weights(local)
            last = stage + 1 == config.stages
            outputs = run_stage(config, self.virtual_ranks, layers, inputs, local, batch, last=last)
            passed.append(Passed(inputs, outputs, local))
        return passed

    def apply(self, step: int, result: StepResult) -> float:
        """Clip and update all shards; return the learning rate."""
        self.observer.now = Moment(step, "step")
        rate = learning_rate(self.config.optimizer, step, self.config.steps)
        clip = clip_factor(result.norm, self.config.optimizer.clip_norm)
        rate = float(self.observer.scalar("learning_rate", torch.tensor(rate, dtype=torch.float64)))
        if clip is not None:
            clip = self.observer.scalar("clip", clip)
        for seat, optimizer in self.optimizers.items():
            optimizer.step(result.gradients[seat], rate, clip)
        self.observer.shards("param", "", self.shards)
        self._show_moments()
        return rate

    def _show_moments(self) -> None:
        moments = {seat: optimizer.moments() for seat, optimizer in self.optimizers.items()}
        for kind in ("exp_avg", "exp_avg_sq", "master"):
            self.observer.shards(
                "optimizer", f".{kind}", {seat: m.get(kind, {}) for seat, m in moments.items()}
            )
