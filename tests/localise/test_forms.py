"""Every form that the generator draws is written once and read: its slow rank is named, or the answer is open."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.localise.answer import ask
from tests.localise.case import make, save
from tests.localise.comms import BLIND_FROM
from tests.localise.job import HABITS, VERSIONS, Job, Version, draw
from tests.localise.score import Outcome, begun
from tests.marks import quick_first

BEGIN, WORLD = 7_400_000, 8
"""Where seeds begin that are looked at for a job of a form, and how many ranks it has."""


def messages(job: Job, torch: Version, *, batched: bool) -> bool:
    """Whether a pipeline's messages are written by this torch, in batches or one by one."""
    return job.torch == torch and job.batched == batched and job.stages > 1


FORMS: dict[str, Callable[[Job], bool]] = {
    **{habit: partial(lambda name, job: job.has(name), habit) for habit in HABITS},
    **{
        f"{'.'.join(map(str, torch))}{'-batched' * batched}": partial(messages, torch=torch, batched=batched)
        for torch in VERSIONS
        for batched in (False, True)
    },
    "cuda_sync": lambda job: job.has("cuda_sync") and (2, 4) <= job.torch < BLIND_FROM,
    "world messages": lambda job: job.style == "deepspeed",
    "one way in the world": lambda job: job.style == "megatron" and not job.batched and job.stages == 2,
    "experts": lambda job: job.experts,
    "interleaved": lambda job: job.chunks > 1,
    "HSDP": lambda job: job.style == "titan" and job.layout.size("dpo") > 1,
    "dp beside cp": lambda job: job.layout.size("cp") > 1 and job.layout.size("dpi", "dpo") > 1,
    "ddp": lambda job: job.style == "ddp",
}
"""By name, as docs/forms.md has it: whether a drawn job is written so."""


def first(form: str) -> int:
    """The first seed whose job is written in a form."""
    return next(seed for seed in count(BEGIN) if FORMS[form](draw(seed, WORLD)))


def answered(form: str, folder: Path) -> Outcome:
    """The first job of a form with a slow rank, all its ranks recorded, and what was answered."""
    case = make(first(form), "slow_compute", WORLD)
    case = replace(case, subset="all", recorded=tuple(range(WORLD)))
    save(case, folder)
    outcome = begun(case)
    ask(case, folder, outcome)
    return outcome


@pytest.mark.parametrize("form", quick_first(1, FORMS))
def test_a_form_names_the_rank_or_stays_open(form, tmp_path):
    outcome = answered(form, tmp_path)
    assert outcome.result in {"right", "inconclusive"}, outcome
