"""The length of a step if something is made typical: from an ingested run to a finding.

The run is opened as `slowrank` opens it. An engine prices fixes with the model of its steps: `table_engine` if an
operation table has all dependencies, else `step_engine`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tracekit.analysis.questions.fixes import Engine, Fix, Saved, parse_fixes
from tracekit.analysis.questions.layout_costs import costs_of
from tracekit.analysis.questions.layouts import BOUNDS, LIKELY, Layout, check, parse_layout, step_ns
from tracekit.analysis.questions.step_engine import StepEngine
from tracekit.analysis.questions.table_engine import TableEngine
from tracekit.case.case import Case
from tracekit.case.opened import opened, quality_of, ranks_of
from tracekit.case.wording import listed
from tracekit.errors import UsageError
from tracekit.findings import StepsFinding, WhatIfAnswer, WhatIfFinding
from tracekit.findings.whatif import EVERYBODY
from tracekit.store import Run
from tracekit.thresholds.slowrank import MOST_GAIN
from tracekit.timing.measured import StepRange
from tracekit.units import ms


def answer(
    run: Run,
    fix: Sequence[str] = (),
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
    layouts: Sequence[str] = (),
) -> WhatIfFinding:
    """Return the step with each `fix` (`rank=5`, `stage=3`, `axis=tp`, `op=all_gather`) and with all together, ms.

    Without a fix the standard questions are answered: all ranks, the worst ranks, each axis and each stage typical.
    `layouts` are other meshes of the same job (`tp=1,dp=4`) on which its step is predicted; without a fix, they are all
    that is answered. `mesh`, `order`, `steps` and `progress` are as for `tracekit.slowrank`. Raises UsageError if a fix
    names nothing in the run, if the traces do not show what a layout needs, or if mesh, order or job contradict the
    run; MeshError and InputError as `tracekit.slowrank` does.
    """
    fixes, wanted = parse_fixes(fix), [parse_layout(text) for text in layouts]
    case, choice = opened(run, mesh, order, steps, progress)
    engine: Engine
    if case.timeline is not None:
        engine = StepEngine(case, case.timeline)
    elif case.table is not None:
        engine = TableEngine(case, case.table)
    for one in fixes:
        _check(engine, one)
    priced = _Pricing(case, engine)
    on_others = priced.layouts(wanted)
    standard = () if fixes or wanted else priced.standard()
    return WhatIfFinding(
        ranks_of(case), choice.finding,
        StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.whole)))),
        ms(case.step_ns), ms(case.residual_ns),
        (*(priced.fixes([one]) for one in fixes), *standard, *on_others),
        priced.fixes(fixes, "together") if fixes else None,
        case.coverage, quality_of(case, choice), choice.notes,
    )  # fmt: skip


def _check(engine: Engine, fix: Fix) -> None:
    """Raise UsageError if `fix` names nothing in the run, or nothing shows what is typical of it."""
    known = engine.known(fix.key)
    if fix.value not in known:
        choices = f"this run has {fix.key} {listed(known)}" if known else f"this run has no {fix.key}"
        raise UsageError(f"--fix {fix.name}: no such {fix.key} was recorded; {choices}")
    refusal = engine.refusal(fix)
    if refusal is not None:
        raise UsageError(f"--fix {fix.name}: {refusal}; fix something else")


class _Pricing:
    """Turns the savings of an engine into answers about the recorded step."""

    def __init__(self, case: Case, engine: Engine) -> None:
        self.case, self.engine = case, engine
        self.all = engine.saved_by_all()

    def fixes(self, fixes: Sequence[Fix], question: str | None = None) -> WhatIfAnswer:
        """The answer with all `fixes` at once."""
        named = question or fixes[0].name
        meaning = "; ".join(self.engine.meaning(fix) for fix in fixes)
        return self._answer(named, meaning, self.engine.ranks_of(fixes), self.engine.saved(fixes))

    def standard(self) -> tuple[WhatIfAnswer, ...]:
        """The answers to the standard questions that apply to this run."""
        all_typical = "all ranks, stages and transfers are typical"
        found = [self._answer(EVERYBODY, all_typical, (), self.all)]
        worst = self.engine.worst()
        if worst:
            fixes = [Fix("rank", str(rank)) for rank in worst]
            which = f"ranks ({listed(worst)}) are" if len(worst) > 1 else f"rank ({worst[0]}) is"
            worst_typical = f"the worst {which} typical"
            found.append(self._answer("worst_ranks", worst_typical, worst, self.engine.saved(fixes)))
        for key in ("axis", "stage"):
            asked = [Fix(key, value) for value in self.engine.known(key)]
            found += [self.fixes([fix]) for fix in asked if self.engine.refusal(fix) is None]
        return tuple(found)

    def layouts(self, wanted: Sequence[Layout]) -> tuple[WhatIfAnswer, ...]:
        """The answers for the same job on other meshes: predictions from the costs of the recorded one.

        The interval covers what the traces leave open, and waits for late ranks that keep their length.
        """
        if not wanted:
            return ()
        costs, step = costs_of(self.case), self.case.step_ns
        answers = []
        for layout in wanted:
            check(costs, layout)
            ends = []
            for bound in (LIKELY, *BOUNDS):
                here, there = (step_ns(costs, sizes, bound) for sizes in (costs.sizes, layout.sizes))
                ends += [step * there / here, max(step + there - here, 0.0)]
            without = ends[0]
            low, high = (step - end for end in (max(ends), min(ends)))
            meaning = "the same model and global batch on this mesh, the work shared evenly"
            answers.append(
                self._priced(f"to-mesh {layout.text}", meaning, (), (step - without, low, high), None)
            )
        return tuple(answers)

    def _answer(self, question: str, meaning: str, ranks: tuple[int, ...], saved: Saved) -> WhatIfAnswer:
        """The answer that subtracts the saved share of the model's step from the recorded step."""
        base, step = self.case.base_ns, self.case.step_ns
        likely, low, high = (
            step * min(v / base, MOST_GAIN) if base > 0 else 0.0
            for v in (saved.likely, saved.low, saved.high)
        )
        share = saved.likely / self.all.likely if self.all.likely > 0 else None
        return self._priced(question, meaning, ranks, (likely, low, high), share)

    def _priced(
        self,
        question: str,
        meaning: str,
        ranks: tuple[int, ...],
        saved: tuple[float, float, float],
        share: float | None,
    ) -> WhatIfAnswer:
        """The answer with what is saved of the recorded step, ns: likely, least and most."""
        step, (likely, low, high) = self.case.step_ns, saved
        without = step - likely
        return WhatIfAnswer(
            question, meaning, ranks, ms(without), ms(step - high), ms(step - low),
            step / without if without > 0 else 1.0, ms(likely), ms(low), ms(high), share,
            low > self.case.residual_ns or high < -self.case.residual_ns,
        )  # fmt: skip
