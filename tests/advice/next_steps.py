"""Every `next` of a comparison that is a sentence of its own, read from the code, and the case that follows it."""

import ast
from functools import partial
from pathlib import Path

from numerics.comparison.compare import Options, compare
from numerics.findings import CompareFinding
from numerics.local.model_source import build
from numerics.local.proof import prove
from tests.advice.messages import PACKAGES, text_of
from tests.house.source import ROOT
from tests.numerics import test_forced_replay as forced
from tests.numerics.local import batch_trainers as batches
from tests.numerics.local import context_trainers as contexts
from tests.numerics.local import random_trainers as random
from tests.numerics.local import reading_trainers as reads
from tests.numerics.local import stepping_trainers as stepping
from tests.numerics.local import test_changed_weights as changed
from tests.numerics.local import test_evaluation_modes as modes
from tests.numerics.local import test_learning_rates as rates
from tests.numerics.local import test_padding as padding
from tests.numerics.local import test_repeated_draws as draws
from tests.numerics.local import test_skipped_updates as updates
from tests.numerics.local import test_token_weights as weights
from tests.numerics.local.strangers import context, replicas
from tests.numerics.local.weighing_trainers import weighing
from tests.ranks.pool import RankPool

PLACE = {"Decision": 3, "Doubt": 1}
"""Which argument of these says what to do next."""


def next_steps() -> set[str]:
    """Return each sentence that a decision or a doubt gives as its next step."""
    found = set()
    for path in (p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        source = path.read_text()
        if not any(f"{name}(" in source for name in PLACE):
            continue
        tree = ast.parse(source)
        constants = {
            node.target.id: text_of(node.value)
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
        }
        for node in ast.walk(tree):
            place = PLACE.get(getattr(getattr(node, "func", None), "id", ""), 0)
            if isinstance(node, ast.Call) and place and len(node.args) > place:
                given = node.args[place]
                found.add(constants.get(given.id, "") if isinstance(given, ast.Name) else text_of(given))
    return {text for text in found if " " in text}


def answered(run: Path, source: str, baseline: Path | None = None) -> CompareFinding:
    """What the local proof by a model says of a run, alone or beside its baseline."""
    made = build(source)
    proving = partial(
        prove, model=made.model, optimizer=made.optimizer, loss=made.loss, schedule=made.schedule
    )
    return compare(run, baseline, Options(prove=proving))


def pieces_placed(folder: Path, pool: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """Sequences cut over ranks, without and with `watch(place=...)`."""
    pool.run(context, 2, folder / "unsaid", "")
    pool.run(context, 2, folder / "said", "", "told")
    source = "tests.numerics.local.strangers:tied"
    return answered(folder / "unsaid", source), answered(folder / "said", source)


def one_step_more(folder: Path, pool: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """Ranks that step parameters for one another, captured for one step and for two."""
    pool.run(replicas, 3, folder / "one", "ZeRO-1", 1)
    pool.run(replicas, 3, folder / "two", "ZeRO-1", 2)
    source = "tests.numerics.local.strangers:tied"
    return answered(folder / "one", source), answered(folder / "two", source)


def buffers_restored(folder: Path, _: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """A trainer that goes back to its first weights, without and with its buffers."""
    return changed.gone_back(folder / "kept", "weights"), changed.gone_back(
        folder / "back", "weights and buffers"
    )


def scheduler_given(folder: Path, _: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """A group whose rate is meant to stand still."""
    run, source = rates.trained(folder / "run", still=True), "tests.numerics.local.test_learning_rates"
    return answered(run, f"{source}:made"), answered(run, f"{source}:kept_still")


def loss_given(folder: Path, _: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """A loss that is meant to be a mean of means."""
    run = weights.trained(folder / "run", weights.own_tokens)
    source = "tests.numerics.local.test_token_weights"
    return answered(run, f"{source}:made"), answered(run, f"{source}:with_loss")


def drawn_on(folder: Path, _: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """Micro-batches that begin with one state of the generator, and such as go on with it."""
    change = "twice from unlike inputs"
    return draws.answered(folder / "alike", change, 2), draws.answered(
        folder / "on", f"{change}, drawn on", 2
    )


def masks_given(folder: Path, _: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """A micro-batch whose padding no mask leaves out, and one with its own mask."""
    return padding.trained(folder / "first", mask="first"), padding.trained(folder / "own")


def _of_layers(folder: Path, pool: RankPool, *layers: str) -> tuple[CompareFinding, ...]:
    """Three data-parallel ranks, a run for each layer that looks at the batch."""
    found = []
    for layer in layers:
        pool.run(batches.trained, 3, layer, 1, folder / layer)
        model, optimizer = batches.build(layer)
        found.append(
            compare(folder / layer, None, Options(prove=partial(prove, model=model, optimizer=optimizer)))
        )
    return tuple(found)


def statistics_shared(folder: Path, pool: RankPool) -> tuple[CompareFinding, ...]:
    """Statistics over each rank's own sequences, and over those of all ranks."""
    return _of_layers(folder, pool, "batch", "synchronised")


def buffers_shared(folder: Path, pool: RankPool) -> tuple[CompareFinding, ...]:
    """A buffer that each rank fills by itself, and one that is reduced over ranks."""
    return _of_layers(folder, pool, "counted", "counted by all")


def seeded_apart(folder: Path, pool: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """Ranks that all have one seed beside a baseline that has one for each rank, and such as have their own."""
    source = "tests.numerics.local.random_trainers:model_of"
    for name, alike in (("alike", True), ("apart", False), ("base", False)):
        pool.run(random.drawing, 3, folder / name, "layer", alike)
    return tuple(answered(folder / name, source, folder / "base") for name in ("alike", "apart"))


def baseline_judged(folder: Path, _: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """A sound run beside a baseline with a bug and other random numbers, and that baseline alone."""
    for name, change in (("run", "reseeded by step"), ("base", "factor")):
        draws.Trainer(change).run(folder / name, 2)
    source = "tests.numerics.local.test_repeated_draws:made"
    return answered(folder / "run", source, folder / "base"), answered(folder / "base", source)


def frozen_in_the_model(folder: Path, _: RankPool) -> tuple[CompareFinding, CompareFinding]:
    """A layer that the trainer froze, in a model that trains it and in one that does not."""
    stepping.trained(0, 1, None, folder, "one layer frozen")
    source = "tests.numerics.local.stepping_trainers"
    return answered(folder, f"{source}:whole"), answered(folder, f"{source}:whole_but_frozen")


def positions_given(folder: Path, pool: RankPool) -> tuple[CompareFinding, ...]:
    """Pieces of sequences whose positions begin again on each rank, and such as count on."""
    model, optimizer = contexts.build("given")
    options = Options(prove=partial(prove, model=model, optimizer=optimizer))
    for name, local in (("local", True), ("whole", False)):
        pool.run(partial(contexts.trained, positions="given", local=local), 3, folder / name)
    return tuple(compare(folder / name, None, options) for name in ("local", "whole"))


def captured_in_fp32(folder: Path, pool: RankPool) -> tuple[CompareFinding, ...]:
    """A formula written otherwise than the replay's, in BF16 and in FP32."""
    options = Options(make_replay=forced.made)
    return tuple(
        compare(forced.changed(pool, folder / policy, "product_in_halves", tables), None, options)
        for policy, tables in (("bf16", forced.BF16), ("fp32", forced.DP3))
    )


def read_apart(folder: Path, pool: RankPool) -> tuple[CompareFinding, ...]:
    """Ranks that all read one rank's sequences, and such as read their own."""
    for name, readers in (("alike", (0, 0, 0)), ("apart", (0, 1, 2))):
        pool.run(partial(reads.reading, readers=readers), 3, folder / name)
    source = "tests.numerics.local.reading_trainers:model_of"
    return tuple(answered(folder / name, source) for name in ("alike", "apart"))


def weights_changed_alike(folder: Path, _: RankPool) -> tuple[CompareFinding, ...]:
    """Weights that are projected after each step, alone and beside a run that does the same from another start."""
    run, base = (changed.trained(folder / name, after=changed.projected) for name in ("run", "base"))
    source = "tests.numerics.local.test_changed_weights:build"
    return answered(run, source), answered(run, source, base)


def counted_over_ranks(folder: Path, pool: RankPool) -> tuple[CompareFinding, ...]:
    """Class weights that each rank sums for itself, and that all ranks sum together."""
    pool.run(partial(weighing, balance=0.0), 1, folder / "base")
    for name in ("apart", "together"):
        pool.run(partial(weighing, shared=name == "together"), 3, folder / name)
    source = "tests.numerics.local.reading_trainers:balanced"
    return tuple(answered(folder / name, source, folder / "base") for name in ("apart", "together"))


def split_alike(folder: Path, pool: RankPool) -> tuple[CompareFinding, ...]:
    """A balance loss of each rank's part, beside a run on one rank and beside one on as many."""
    for name, world in (("run", 3), ("one", 1), ("three", 3)):
        pool.run(partial(weighing, balance=0.1), world, folder / name)
    source = "tests.numerics.local.reading_trainers:balanced"
    return tuple(answered(folder / "run", source, folder / name) for name in ("one", "three"))


def forwards_watched(folder: Path, _: RankPool) -> tuple[CompareFinding, ...]:
    """Forwards without gradients, watched with an optimizer and without."""
    found = []
    for given in (True, False):
        runs = [folder / f"{given}{number}" for number in (0, 1)]
        for run in runs:
            reads.forwards(run, given)
        found.append(compare(*runs))
    return tuple(found)


def trained_again(folder: Path, _: RankPool) -> tuple[CompareFinding, ...]:
    """A layer that drops nothing after an evaluation, and one that trains again."""
    for name, evaluating in (("left", ["drop"]), ("again", [])):
        modes.trained(folder / name, evaluating)
    return tuple(modes.proved(folder / name) for name in ("left", "again"))


def evaluated_both(folder: Path, _: RankPool) -> tuple[CompareFinding, ...]:
    """An engine in training mode beside one in evaluation mode, and both in that."""
    for name, mode in (("base", False), ("train", True), ("eval", False)):
        modes.served(folder / name, mode=mode, one_by_one=False)
    return tuple(modes.proved(folder / name, folder / "base") for name in ("train", "eval"))


def cleared_behind(folder: Path, _: RankPool, habit: str = "") -> tuple[CompareFinding, ...]:
    """Gradients that are cleared between backward and update, and behind the update."""
    runs = [updates.Trainer(habit=one).run(folder / (one or "behind")) for one in (habit, "")]
    return tuple(updates.answer(run) for run in runs)


def updates_alike(folder: Path, _: RankPool) -> tuple[CompareFinding, ...]:
    """A run that skips an update for an overflow, and one that does not."""
    base = updates.Trainer(micro=1).run(folder / "base")
    habits = {"apart": "skips, overflows", "alike": ""}
    runs = [updates.Trainer(habit=habit).run(folder / name) for name, habit in habits.items()]
    return tuple(updates.answer(run, base) for run in runs)


def from_one_checkpoint(folder: Path, _: RankPool) -> tuple[CompareFinding, ...]:
    """A run that goes on from its own checkpoint, beside one that never stopped, and one that goes on from there."""
    run = updates.Trainer(first=2).run(folder / "run")
    through = updates.Trainer(micro=1).run(folder / "through")
    again = updates.Trainer(first=2).run(folder / "again")
    return updates.answer(run, through), updates.answer(run, again)


FOLLOWED = {
    "or before the backward, and not between": partial(cleared_behind, habit="none"),
    "or before the first backward of a step": partial(cleared_behind, habit="zeros"),
    "let both runs begin with a loss scale that overflows in neither": updates_alike,
    "compare with a baseline that goes on from the same checkpoint": from_one_checkpoint,
    "call `model.train()` after each evaluation; or": trained_again,
    "call `model.eval()` in both runs or in neither": evaluated_both,
    "give each data-parallel rank and micro-batch sequences of its own": read_apart,
    "compare with a baseline that changes its weights in the same way": weights_changed_alike,
    "restore the buffers together with the weights": buffers_restored,
    "divide each rank's loss by what all ranks count": counted_over_ranks,
    "compute it over the sequences of all ranks and micro-batches": split_alike,
    "for forwards without gradients give `watch` no optimizer": forwards_watched,
    "capture the run in FP32, and compare again": captured_in_fp32,
    "take statistics over all data-parallel ranks": statistics_shared,
    "all-reduce or broadcast the buffers": buffers_shared,
    "seed each data-parallel rank by its number": seeded_apart,
    "numerics compare --model FILE.py:FUNCTION --parallel ": baseline_judged,
    "freeze it in the function given by --model as well": frozen_in_the_model,
    "give each rank the positions that its piece has": positions_given,
    "give every rank the mask of its own sequences": masks_given,
    "let each micro-batch draw on from where the one before it ended": drawn_on,
    "capture again with `watch(place=...)`": pieces_placed,
    "capture one step more": one_step_more,
    "return the scheduler too": scheduler_given,
    "return the loss function too": loss_given,
}
"""By a part of the sentence: what does as it says, and gives the answers before and after."""
ENDS_AT_A_BUG = {"numerics compare --model FILE.py:FUNCTION --parallel "}
"""The steps that look for where the bug is: what they find is one."""
BEGINS_AT_A_BUG = {"divide each rank's loss by what all ranks count"}
"""The steps that cure what their case proves; other cases leave the same open."""
