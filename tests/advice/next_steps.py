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
from tests.numerics.local import test_learning_rates as rates
from tests.numerics.local import test_padding as padding
from tests.numerics.local import test_repeated_draws as draws
from tests.numerics.local import test_token_weights as weights
from tests.numerics.local.strangers import context, replicas
from tests.ranks.pool import RankPool

PLACE = {"Decision": 3, "Doubt": 1}
"""Which argument of these says what to do next."""


def next_steps() -> set[str]:
    """Return each sentence that a decision or a doubt gives as its next step."""
    found = set()
    for path in (p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
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


def answered(run: Path, source: str) -> CompareFinding:
    """What the local proof by a model says of a run."""
    made = build(source)
    proving = partial(
        prove, model=made.model, optimizer=made.optimizer, loss=made.loss, schedule=made.schedule
    )
    return compare(run, None, Options(prove=proving))


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


FOLLOWED = {
    "give every rank the mask of its own sequences": masks_given,
    "let each micro-batch draw on from where the one before it ended": drawn_on,
    "capture again with `watch(place=...)`": pieces_placed,
    "capture one step more": one_step_more,
    "return the scheduler too": scheduler_given,
    "return the loss function too": loss_given,
}
"""By a part of the sentence: what does as it says, and gives the answers before and after."""
