"""The results as Markdown: figures first, then one row a case, then what falls short."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.numerics.benchmark.others import PERTURBATION

RULES = ("loss curve 1e-3", "gradient norm 1e-3", "assert_close", "relative 1e-3", PERTURBATION)
FAMILIES = {
    "P": "catalogue",
    "O": "patches from outside",
    "N": "new bugs of source",
    "S": "other ways to compute the same",
    "D": "benign layouts",
    "4": "benign layouts",
    "F": "another's trainer",
}
QUESTIONS = ("exact", "module", "axis", "explained")
Result = Mapping[str, Any]


def share(flags: Iterable[bool | None]) -> str:
    """How many of those that were asked."""
    asked = [flag for flag in flags if flag is not None]
    return f"{sum(asked)} of {len(asked)}"


def _score(result: Result, name: str) -> Any:
    return result.get("score", {}).get(name)


def summary(results: Sequence[Result]) -> list[str]:
    """Figures over all cases, by family of cases, and of the other rules."""
    head = "| | planted bugs called | benign changes not called | first divergence exact | right module | right axis | "
    rows = [head + "explained | explained wrongly |", "|---" * 8 + "|"]
    rows.append(_figures("`numerics compare`", results))
    for family in dict.fromkeys(FAMILIES.values()):
        own = [r for r in results if FAMILIES.get(r["name"][0]) == family]
        rows += [_figures(f"– {family}", own)] if own else []
    bugs, benign = ([r for r in results if r["bug"] is wanted and "others" in r] for wanted in (True, False))
    for rule in RULES:
        called = [r["others"].get(rule) for r in bugs]
        quiet = [None if (said := r["others"].get(rule)) is None else not said for r in benign]
        rows.append(f"| {rule} | {share(called)} | {share(quiet)} | – | – | – | – | – |")
    return rows


def _figures(name: str, results: Sequence[Result]) -> str:
    """One row; a case that could not be measured counts as missed."""
    bugs, benign = ([r for r in results if r["bug"] is wanted] for wanted in (True, False))
    called = share(bool(_score(r, "right")) for r in bugs)
    quiet = share(_score(r, "false_alarm") is False for r in benign)
    asked = [share(_score(r, q) if "score" in r else False for r in bugs) for q in QUESTIONS]
    return (
        f"| {name} | {called} | {quiet} | "
        + " | ".join(asked)
        + f" | {share(_score(r, 'misled') for r in bugs)} |"
    )


def best_multiple(results: Sequence[Result]) -> str:
    """What the method of perturbations does at its best multiple, chosen afterwards on these very cases."""
    sizes = [(r["bug"], r["multiple"]) for r in results if r.get("multiple") is not None]
    if not sizes:
        return ""
    bugs, benign = ([size for bug, size in sizes if bug is wanted] for wanted in (True, False))

    def right(limit: float) -> int:
        return sum(size > limit for size in bugs) + sum(size <= limit for size in benign)

    best = max(sorted({size for _, size in sizes}), key=right)
    called, quiet = sum(size > best for size in bugs), sum(size <= best for size in benign)
    return (
        f"At the multiple that is best on these very cases ({best:.3g}), the method of perturbations calls {called} of "
        f"{len(bugs)} bugs and leaves {quiet} of {len(benign)} benign changes uncalled."
    )


def _mark(flag: Any) -> str:
    return {True: "yes", False: "**no**"}.get(flag, "–")


def _row(result: Result) -> str:
    score = result.get("score")
    if score is None:
        return f"| {_cell(result['name'])} | **{_cell(result.get('error', '')[-80:])}** |" + " |" * (
            4 + len(RULES)
        )
    verdict = score["verdict"] if score["right"] else f"**{score['verdict']}**"
    marks = " | ".join(_mark(score[name]) for name in QUESTIONS)
    if score.get("misled"):
        marks = marks.removesuffix("**no**") + "**wrongly**"
    others = " | ".join(_mark_rule(result, rule) for rule in RULES)
    return f"| {_cell(result['name'])} | {verdict} | {marks} | {others} |"


def _mark_rule(result: Result, rule: str) -> str:
    called = result.get("others", {}).get(rule)
    if called is None:
        return "–"
    return ("bug" if called else "fine") if called == result["bug"] else ("**bug**" if called else "**fine**")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(results: Sequence[Result]) -> str:
    """Markdown of all results, sorted by name."""
    ordered = sorted(results, key=lambda r: r["name"])
    lines = [*summary(ordered), "", *_pass(ordered), "", "Each case; wrong answers are bold.", ""]
    lines.append("| case | verdict | exact | module | axis | explained | " + " | ".join(RULES) + " |")
    lines.append("|---" * (6 + len(RULES)) + "|")
    lines += [_row(result) for result in ordered]
    short = [r for r in ordered if _falls_short(r)]
    told = f"{len(short)} cases fall short:" if short else "No case falls short."
    lines += ["", told, *([""] if short else [])]
    lines += [f"- {_cell(r['name'])}: {_cell(_why(r))}" for r in short]
    lines += _unasked(ordered)
    return "\n".join(lines) + "\n"


def _pass(results: Sequence[Result]) -> list[str]:
    """Which commit was measured, how long it took, and how the method of perturbations does at its best."""
    commits = sorted({str(r["commit"]) for r in results if "commit" in r})
    seconds = sum(sum(r["seconds"].values()) for r in results if "seconds" in r)
    told = (
        [f"{len(results)} cases at commit {' and '.join(commits)}, {seconds / 60:.0f} minutes."]
        if commits
        else []
    )
    best = best_multiple(results)
    return [" ".join([*told, *([best] if best else [])])] if told or best else []


def _falls_short(result: Result) -> bool:
    score = result.get("score")
    return score is None or not score["right"] or score["exact"] is False


def _why(result: Result) -> str:
    score = result.get("score")
    if score is None:
        return f"could not be measured ({result.get('error', '')[-200:]})"
    if score["right"]:
        return f"found {score['answer']}"
    wanted = f"verdict {score['verdict']}, wanted {' or '.join(result['expected'])}"
    return f"{wanted}: {result.get('document', {}).get('reason', '')}; found {score['answer']}"


def _unasked(results: Sequence[Result]) -> list[str]:
    """Explanations of bugs for which the benchmark holds no right one: for the reader to judge."""
    told = [
        f"- {_cell(r['name'])}: {_cell(r['document']['explanation'])}"
        for r in results
        if r["bug"]
        and "score" in r
        and r["score"]["explained"] is None
        and r.get("document", {}).get("explanation")
    ]
    return ["", "Explanations where none was asked for:", "", *told] if told else []
