"""`python -m tests.paired.constructed TESTS…`: which tests of constructed jobs fail without a rule of `slowrank`.

Each test is run once, again without all rules that say something in it, and where it then fails, without each. A rule
that no job of the goldens needs may still be needed by one of these, as jobs that a test builds hold what generators
seldom draw. What a fixture of a module computes is not computed again, so that such tests may miss a rule.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.paired.ablation import RULES, Rule, instead, noting, silenced


class Ablation:
    """A plugin of pytest that runs each test again without each of the `rules` which says something in it."""

    def __init__(self, kept: Path | None, rules: Sequence[Rule] = RULES) -> None:
        self.kept = kept
        self.rules = rules
        self.speaks: dict[str, list[str]] = defaultdict(list)
        self.fails: dict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function, nextitem: pytest.Item | None) -> Iterator[None]:
        """Run a test as usual, then without all rules that spoke, and where that fails, without each of them."""
        said: set[str] = set()
        with ExitStack() as all_:
            for rule in self.rules:
                all_.enter_context(instead(rule, noting(rule, said)))
            result = yield
        spoke = [r for r in self.rules if r.name in said]
        needed = bool(spoke) and self._fails_without(spoke, item, nextitem)
        for rule in spoke:
            self.speaks[rule.name].append(item.nodeid)
            if needed and (len(spoke) == 1 or self._fails_without([rule], item, nextitem)):
                self.fails[rule.name].append(item.nodeid)
        if self.kept is not None:
            self.kept.write_text(json.dumps({"speaks": self.speaks, "fails": self.fails}, indent=1))
        return result

    @staticmethod
    def _fails_without(rules: Sequence[Rule], item: pytest.Function, nextitem: pytest.Item | None) -> bool:
        """Whether a test fails without `rules`."""
        item._initrequest()
        with ExitStack() as all_:
            for rule in rules:
                all_.enter_context(instead(rule, silenced(rule)))
            reports = runtestprotocol(item, log=False, nextitem=nextitem or item)
        return any(report.failed for report in reports)

    def table(self) -> str:
        """The ledger as Markdown: a line a rule."""
        lines = [
            "| rule | tests in which it speaks | that fail without it | for example |",
            "|---|---|---|---|",
        ]
        for rule in sorted(
            self.rules, key=lambda r: (-len(self.fails[r.name]), -len(self.speaks[r.name]), r.name)
        ):
            fails = self.fails[rule.name]
            example = f"`{fails[0].rpartition('/')[2]}`" if fails else "-"
            lines.append(f"| `{rule.name}` | {len(self.speaks[rule.name])} | {len(fails)} | {example} |")
        return "\n".join(lines)


def main() -> None:
    """Prints the ledger of constructed jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="keep the ledger here after every test")
    parser.add_argument("--rules", help="names of rules joined by commas, instead of all")
    chosen, tests = parser.parse_known_args()
    names = chosen.rules.split(",") if chosen.rules else [rule.name for rule in RULES]
    plugin = Ablation(chosen.json, [rule for rule in RULES if rule.name in names])
    pytest.main(["-q", "-p", "no:cacheprovider", *(tests or ["tests/slowrank"])], plugins=[plugin])
    print(plugin.table())


if __name__ == "__main__":
    main()
