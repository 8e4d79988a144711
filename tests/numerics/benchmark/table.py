"""The results as Markdown: figures first, then one row a case, then what falls short."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

RULES = ("loss curve 1e-3", "gradient norm 1e-3", "assert_close", "relative 1e-3")
Result = Mapping[str, Any]


def share(flags: Iterable[bool | None]) -> str:
    """How many of those that were asked."""
    asked = [flag for flag in flags if flag is not None]
    return f"{sum(asked)} of {len(asked)}"


def _score(result: Result, name: str) -> Any:
    return result.get("score", {}).get(name)


def summary(results: Sequence[Result]) -> list[str]:
    """Figures over all cases."""
    bugs = [r for r in results if r["bug"]]
    benign = [r for r in results if not r["bug"]]
    rows = [
        (
            "| | planted bugs called | benign changes not called | first divergence exact | right module | "
            "right axis | explained |"
        ),
        "|---|---|---|---|---|---|---|",
        f"| `numerics compare` | {share(bool(_score(r, 'right')) for r in bugs)} | "
        f"{share(_score(r, 'false_alarm') is False for r in benign)} | "
        + " | ".join(
            share(
                bool(_score(r, name)) if "score" in r else False
                for r in bugs
                if _score(r, name) is not None or "score" not in r
            )
            for name in ("exact", "module", "axis", "explained")
        )
        + " |",
    ]
    for rule in RULES:
        called = [r["others"][rule] for r in bugs if "others" in r]
        quiet = [
            None if r["others"][rule] is None else not r["others"][rule] for r in benign if "others" in r
        ]
        rows.append(f"| {rule} | {share(called)} | {share(quiet)} | – | – | – | – |")
    return rows


def _mark(flag: Any) -> str:
    return {True: "yes", False: "**no**"}.get(flag, "–")


def _row(result: Result) -> str:
    score = result.get("score")
    if score is None:
        return f"| {result['name']} | **{_cell(result.get('error', '')[-80:])}** | | | | | | | | |"
    verdict = score["verdict"] if score["right"] else f"**{score['verdict']}**"
    marks = " | ".join(_mark(score[name]) for name in ("exact", "module", "axis", "explained"))
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
    lines = [*summary(ordered), "", "Each case; wrong answers are bold.", ""]
    lines.append("| case | verdict | exact | module | axis | explained | " + " | ".join(RULES) + " |")
    lines.append("|---" * 10 + "|")
    lines += [_row(result) for result in ordered]
    short = [r for r in ordered if _falls_short(r)]
    told = f"{len(short)} cases fall short:" if short else "No case falls short."
    lines += ["", told, *([""] if short else [])]
    lines += [f"- {_cell(r['name'])}: {_cell(_why(r))}" for r in short]
    return "\n".join(lines) + "\n"


def _falls_short(result: Result) -> bool:
    score = result.get("score")
    return score is None or not score["right"] or score["exact"] is False


def _why(result: Result) -> str:
    score = result.get("score")
    if score is None:
        return f"could not be measured ({result.get('error', '')[-200:]})"
    wanted = (
        "" if score["right"] else f"verdict {score['verdict']}, wanted {' or '.join(result['expected'])}; "
    )
    return f"{wanted}found {score['answer']}"
