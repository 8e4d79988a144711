"""The pipeline ranks that hold each virtual stage, and the micro-batches that each of them sums gradients of."""

from functools import cached_property

from reftrain.config.run import RunConfig
from reftrain.schedule.actions import ENCODER, ENDS_BACKWARD, Kind, Schedule
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.registry import SCHEMES


class Pipeline:
    """A run's stages on its pipeline ranks, as the table of its schedule declares them."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @cached_property
    def schedule(self) -> Schedule:
        """Return the table with messages, reductions and sums over replicas."""
        config, pipeline = self.config, self.config.pipeline
        table = make_schedule(
            pipeline.schedule,
            config.mesh.pp,
            pipeline.virtual_stages,
            config.micro_batches,
            config.consecutive,
            pipelines=pipeline.pipelines,
            concatenation=pipeline.concatenation,
            steps=1 if SCHEMES[pipeline.schedule].synchronous else config.steps,
        )
        return lower(table, config.mesh.zero, pipeline.replica_sync, config.encoder.placed)

    def owners(self, stage: int) -> list[int]:
        """Return the pipeline ranks that hold a stage, ascending: one, or several in a bidirectional schedule."""
        return sorted(set(self.schedule.owners(stage)))

    def held(self, pp: int) -> list[int]:
        """Return the stages that a pipeline rank holds, ascending."""
        return sorted({stage for _, stage in self.schedule.held_by(pp)} | self._encoder(pp))

    def _encoder(self, pp: int) -> set[int]:
        return {ENCODER} if pp in self.schedule.encoders else set()

    def counted(self, pp: int) -> list[int]:
        """Return the stages that count on a pipeline rank where each is to count once: those of the first replica."""
        first = self._encoder(pp) if self.schedule.encoders[:1] == (pp,) else ()
        return [*first, *self.schedule.stages_of(pp)]

    @cached_property
    def _replicas(self) -> dict[int, int]:
        forwards = (a for _, _, a in self.schedule.everything() if a.kind is Kind.FORWARD)
        return {action.micro_batch: action.replica for action in forwards}

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """Return the pipeline rank that computes a micro-batch on a stage, or its images in the encoder."""
        if stage == ENCODER:
            encoders = self.schedule.encoders
            return next(pp for pp in encoders if micro_batch in self.schedule.encoded_by(pp))
        return self.schedule.rank_of(stage, self._replicas[micro_batch])

    def replica_of(self, micro_batch: int) -> int:
        """Return the pipeline of a bidirectional schedule that a micro-batch runs through; else 0."""
        return self._replicas[micro_batch]

    def _ends(self, stage: int, pp: int, kinds: frozenset[Kind]) -> tuple[int, ...]:
        actions = self.schedule.actions[pp]
        return tuple(a.micro_batch for a in actions if a.stage == stage and a.kind in kinds)

    def added(self, stage: int, pp: int) -> tuple[int, ...]:
        """Return the micro-batches that a rank sums gradients of for a stage, in the table's order."""
        return self._ends(stage, pp, ENDS_BACKWARD)

    def reduced_after(self, stage: int, pp: int) -> tuple[int, ...]:
        """Return the micro-batches after which a rank reduces a stage's gradients over data parallelism."""
        return self._ends(stage, pp, frozenset({Kind.REDUCE_GRADIENT}))
