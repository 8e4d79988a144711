"""The local proof of a run: every module, gradient and update from its own recorded inputs.

Unlike a replay it repeats nothing from the start: each module gets the inputs that the run recorded. What a module
computes then differs from its record by the rounding of that module alone, for which a bound is derived, and a bug
shows at its place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from numerics.columns import Columns
from numerics.local.evaluation_modes import modal_layers, mode_doubts, modes_in_words
from numerics.local.forced_pass import Check
from numerics.local.gradients.collective_sums import check_collectives
from numerics.local.gradients.gradient_checks import Reduced, check_added, check_copies, check_gradients
from numerics.local.gradients.parameter_gradients import Scale, Sum
from numerics.local.gradients.tied_copies import check_ties
from numerics.local.judgement import Standing, moved
from numerics.local.local_check import Doubt, LocalCheck
from numerics.local.lone import without_lone_ranks
from numerics.local.losses.loss_check import Loss, LossChecks, check_loss
from numerics.local.losses.loss_weights import read_weights, weights_by_place, weights_of_positions
from numerics.local.model_inputs import spread_input
from numerics.local.places.batch_statistics import BatchStatistics
from numerics.local.places.place_pass import judged_place
from numerics.local.places.rank_positions import local_position_doubts
from numerics.local.places.statistics_checks import StatisticsChecks
from numerics.local.read_sequences import repeated_sequences, same_sequences_doubts
from numerics.local.recorded_step import RecordedStep
from numerics.local.records.recorded import RecordedRun
from numerics.local.repeated_draws import RepeatedDraws
from numerics.local.updates.changed_between import changed_weights_doubts, left_buffers_doubts
from numerics.local.updates.learning_rates import RateChecks, Schedule, check_rates
from numerics.local.updates.update_checks import check_update
from tracekit.errors import InputError


@dataclass(frozen=True)
class LocalProof:
    """All checks of a run in the order in which data flow, and what was not seen.

    `scales` gives the factor of the gradients by step, `first_gradients` the recorded ones of `first_step`, whole.
    `orders` says in words which orders the sums over ranks follow, `loss_factors` by step how many times the gradient
    of the given loss function the recorded one is (empty where none was given or checked). `spread` names an input
    with unequal, undeclared pieces on ranks that share a data-parallel index: then neither modules nor gradients are
    checked, because pieces cannot be separated from copies and addends. `doubts` may be intended or bugs, which the
    records do not show; `remarks` says in words what else was read from the run. `draws` is what forwards drew,
    `repeats` says which steps read the sequences of an earlier one again. `weights` is how much each position of
    the first step counts in the gradients that the optimiser saw, sorted, float64; None where the loss is not a cross
    entropy, or where gradients were clipped. `statistics` are what the model computes over the sequences of a batch.
    `loss_scale` is the run's gradients in units of the gradients of a mean, if its records show that.
    `undivided` is the number of micro-batches if all gradients are so many times a mean's (else 0), and in words which
    ranks of the run are as many; `sizes` are the numbers of micro-batches and ranks that a factor may be, by name.
    `modal` are the layers that compute another thing in evaluation mode.
    `of_modules` is False where no model was given, and no module was run.
    """

    checks: tuple[LocalCheck, ...]
    scales: dict[int, Scale] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    first_step: int = 0
    first_gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    loss_factors: dict[int, float] = field(default_factory=dict)
    spread: str = ""
    doubts: tuple[Doubt, ...] = ()
    remarks: tuple[str, ...] = ()
    draws: RepeatedDraws = field(default_factory=RepeatedDraws)
    repeats: str = ""
    weights: torch.Tensor | None = None
    statistics: BatchStatistics = field(default_factory=BatchStatistics)
    loss_scale: str = ""
    undivided: tuple[int, str] = (0, "")
    sizes: Mapping[str, int] = field(default_factory=dict)
    modal: frozenset[str] = frozenset()
    of_modules: bool = True

    @property
    def wrong(self) -> list[LocalCheck]:
        """The checks that rounding does not explain, the first first."""
        return [c for c in self.checks if c.check.judged.standing == Standing.BEYOND]

    @property
    def silent(self) -> list[str]:
        """The numbers that the model keeps beside its output and that add to no gradient: all are right without."""
        standings: dict[str, set[Standing]] = {}
        for judged in (c.check.judged for c in self.checks if c.check.judged.beside):
            standings.setdefault(judged.beside, set()).add(judged.standing)
        return sorted(name for name, found in standings.items() if found == {Standing.EQUAL})


def prove(
    run: Columns,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    progress: Callable[[str], None] | None = None,
    loss: Loss | None = None,
    schedule: Schedule | None = None,
) -> LocalProof:
    """Return the local proof of a captured run by its model on one process, with loss and schedule where given.

    InputError where the capture holds no values, or none of the model's inputs.
    """
    recorded = RecordedRun(run)
    steps = _provable_steps(recorded)
    _with_whole_gradients(model)
    checks: list[LocalCheck] = []
    reduced, losses, draws, spread = Reduced(), LossChecks(), RepeatedDraws(), ""
    statistics = StatisticsChecks(loss)
    for step in steps:
        if progress is not None:
            progress(f"step {step} of {steps[-1]}")
        state = RecordedStep(recorded, model, step)
        checks += [
            LocalCheck(step, None, c, rows) for c, rows in check_collectives(recorded, step, reduced.learned)
        ]
        spread = spread or next(
            filter(None, (spread_input(state, place) for place in recorded.places(step))), ""
        )
        checks += [] if spread else _computed(state, loss, losses, reduced, draws, statistics)
        checks += check_copies(state)
        checks += check_update(state, optimizer, reduced.unseen)
    grads = _gradients_of(RecordedStep(recorded, model, steps[0]))
    checks = [*losses.checks, *checks]
    if len(run.capture.environments) < 2:  # machines of other kinds have other kernels
        checks = without_lone_ranks(checks)
    found = LocalProof(tuple(checks), {}, (), (), steps[0], grads, spread=spread, remarks=statistics.remarks)
    common = losses.common
    found = replace(found, statistics=statistics.found, undivided=common.undivided, sizes=common.sizes)
    found = _completed(found, reduced, losses, check_rates(recorded, schedule), draws, recorded)
    return _with_modes(found, recorded, model)


def _with_whole_gradients(model: nn.Module) -> None:
    """Let embeddings give gradients of all rows: the same numbers, with bounds that follow them."""
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False


def _with_modes(proof: LocalProof, recorded: RecordedRun, model: nn.Module) -> LocalProof:
    """Return a proof with what the modes of modules, and weights changed between steps, leave open."""
    remarks = modes_in_words(recorded, model)
    between = (
        *changed_weights_doubts(recorded.run),
        *left_buffers_doubts(recorded.run, model.state_dict().keys()),
    )
    doubts = (*mode_doubts(recorded, model), *proof.doubts, *between)
    return replace(proof, modal=modal_layers(model), doubts=doubts, remarks=(*proof.remarks, *remarks))


def _provable_steps(recorded: RecordedRun) -> list[int]:
    """Return the steps of a run, and compute with its threads. InputError where the capture holds no values."""
    run, steps = recorded.run, recorded.steps
    if not steps and run.capture.values:
        raise InputError(
            f"{run.capture.folder}: no forward was recorded; `numerics.watch` records forwards with gradients, or all "
            "forwards if it gets no optimizer"
        )
    if not steps or not run.capture.values:
        raise InputError(f"{run.capture.folder}: a local proof needs values; capture with --level tensors")
    torch.set_num_threads(max(int(run.capture.environment.get("threads") or 1), 1))
    return steps


def _completed(
    proof: LocalProof,
    reduced: Reduced,
    losses: LossChecks,
    rates: RateChecks,
    draws: RepeatedDraws,
    recorded: RecordedRun,
) -> LocalProof:
    """Return a proof with what is known of gradients, the loss, the learning rates and random numbers that repeat."""
    return replace(
        proof,
        checks=(*rates.checks, *draws.checks(), *proof.checks),
        scales=reduced.scales,
        orders=reduced.learned.said,
        loss_factors=losses.factors,
        loss_scale=losses.common.scale,
        unseen=tuple(sorted({*reduced.unseen, *losses.unseen, *losses.padding.unseen, *rates.unseen})),
        doubts=(
            *local_position_doubts(recorded),
            *same_sequences_doubts(recorded),
            *losses.weights.doubts,
            *losses.padding.doubts,
            *losses.common.doubts,
            *reduced.doubts,
            *rates.doubts,
            *draws.doubts(),
        ),
        remarks=(
            *proof.remarks,
            *losses.weights.remarks,
            *losses.padding.remarks,
            *reduced.remarks,
            *draws.remarks(),
            *(f"learning rates: {text}" for text in rates.remarks),
        ),
        draws=draws,
        repeats=repeated_sequences(recorded),
        weights=losses.positions,
    )


def _computed(
    state: RecordedStep,
    loss: Loss | None,
    losses: LossChecks,
    reduced: Reduced,
    draws: RepeatedDraws,
    statistics: StatisticsChecks,
) -> list[LocalCheck]:
    """Check modules, loss and reduced gradients of a step."""
    found, sums = _modules(state, reduced.unseen, draws, statistics)
    if loss is not None:
        check_loss(state, loss, losses)
    found += check_gradients(state, sums, reduced)
    scale, weights = reduced.scales.get(state.step), weights_by_place(state)
    losses.common.add(state, scale, weights, losses.factors.get(state.step), reduced.norms.get(state.step))
    losses.padding.add(state, weights, declared=state.step in losses.factors)
    if state.step == state.recorded.steps[0]:
        losses.positions = weights_of_positions(state, scale, weights)
    if state.step not in losses.factors:
        read_weights(state, scale, weights, losses.weights)
    return found


def _gradients_of(state: RecordedStep) -> dict[str, torch.Tensor]:
    """Return the recorded gradients of a step, whole."""
    shapes = {f"{name}.grad": tuple(p.shape) for name, p in state.model.named_parameters()}
    return {name: g for name, shape in shapes.items() if (g := state.gradient(name, shape)) is not None}


def _modules(
    state: RecordedStep, unseen: set[str], draws: RepeatedDraws, statistics: StatisticsChecks
) -> tuple[list[LocalCheck], dict[str, Sum]]:
    """Check all modules of a step, forth and back, and add up the parameters' gradients."""
    held, checks = _weights(state)
    with torch.no_grad():  # what is recomputed in the backward reads the model's own
        for name, p in state.model.named_parameters():
            p.copy_(held[name])
    if state.experts:
        unseen.add(
            f"inside of {state.experts[0]} and other modules of some data-parallel ranks, where tokens of all meet"
        )
    sums: dict[str, Sum] = {}
    judged = {
        place: judged_place(state, place, held, asked=draws.asks(state, place))
        for place in state.recorded.places(state.step)
    }
    for place, found in statistics.judged(state, held, judged).items():
        unseen |= found.unseen
        draws.add(state, place, found)
        checks += [LocalCheck(state.step, place, c) for c in found.checks]
        checks += check_added(state, place, found.plain, found.grads, sums)
    return checks, sums


def _weights(state: RecordedStep) -> tuple[dict[str, torch.Tensor], list[LocalCheck]]:
    """Return the weights that a step computes with, by name, and checks of copies and of what was gathered for it."""
    held: dict[str, torch.Tensor] = {}
    checks = check_ties(state)
    for name, p in state.model.named_parameters():
        value = state.parameter(name, tuple(p.shape))
        if value is None:
            raise InputError(
                f"{state.recorded.run.capture.folder}: {name} of shape {tuple(p.shape)} was not recorded before step "
                f"{state.step}; is this the model that was trained, and was it captured with --level tensors?"
            )
        gathered = state.gathered(name, tuple(p.shape))
        held[name] = value if gathered is None else gathered
        if gathered is not None:
            judged = moved(value.to(gathered.dtype), gathered)
            checks.append(
                LocalCheck(state.step, None, Check(name, name.rpartition(".")[0], "forward", judged))
            )
    return held, checks
