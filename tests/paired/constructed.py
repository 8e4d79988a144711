"""`python -m tests.paired.constructed TESTS…`: which tests of constructed jobs fail without a rule of `slowrank`.

Each test is run once, and then again without each rule that says something in it. A rule that no job of the goldens
needs may still be needed by one of these, as jobs that a test builds hold what generators seldom draw. What a fixture
of a module computes is not computed again, so that such tests may miss a rule.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.paired.ablation import RULES, instead, noting, silenced


class Ablation:
    """A plugin of pytest that runs each test again without each rule which says something in it."""

    def __init__(self, kept: Path | None) -> None:
        self.kept = kept
        self.speaks: dict[str, list[str]] = defaultdict(list)
        self.fails: dict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function, nextitem: pytest.Item | None) -> Iterator[None]:
        """Run a test as usual, then without rules."""
        said: set[str] = set()
        with ExitStack() as all_:
            for rule in RULES:
                all_.enter_context(instead(rule, noting(rule, said)))
            result = yield
        for rule in [r for r in RULES if r.name in said]:
            self.speaks[rule.name].append(item.nodeid)
            item._initrequest()
            with instead(rule, silenced(rule)):
                reports = runtestprotocol(item, log=False, nextitem=nextitem or item)
            if any(report.failed for report in reports):
                self.fails[rule.name].append(item.nodeid)
        if self.kept is not None:
            self.kept.write_text(json.dumps({"speaks": self.speaks, "fails": self.fails}, indent=1))
        return result

    def table(self) -> str:
        """The ledger as Markdown: a line a rule."""
        lines = [
            "| rule | tests in which it speaks | that fail without it | for example |",
            "|---|---|---|---|",
        ]
        for rule in sorted(
            RULES, key=lambda r: (-len(self.fails[r.name]), -len(self.speaks[r.name]), r.name)
        ):
            fails = self.fails[rule.name]
            example = f"`{fails[0].rpartition('/')[2]}`" if fails else "-"
            lines.append(f"| `{rule.name}` | {len(self.speaks[rule.name])} | {len(fails)} | {example} |")
        return "\n".join(lines)


def main() -> None:
    """Prints the ledger of constructed jobs; `--json FILE` keeps it after every test."""
    given = sys.argv[1:]
    at = given.index("--json") if "--json" in given else None
    kept = Path(given[at + 1]) if at is not None else None
    tests = given if at is None else given[:at] + given[at + 2 :]
    plugin = Ablation(kept)
    pytest.main(["-q", "-p", "no:cacheprovider", *(tests or ["tests/slowrank"])], plugins=[plugin])
    print(plugin.table())


if __name__ == "__main__":
    main()
