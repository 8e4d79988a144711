"""Words that the text and the page of `tracekit hang` share: folded culprits, calls, groups, stacks and ranks."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tracekit.findings.hang import CallRef, Culprit, GroupRef, HangFinding, Side
from tracekit.text import plain, ranges, rank_names
from tracekit.thresholds.report import RANK_RUNS_SHOWN, SHAPES_SHOWN


def folded(culprits: Iterable[Culprit]) -> list[list[Culprit]]:
    """Return the culprits grouped by equal failures: the same kind and call, in groups of the same role.

    Groups at the same place of several replicas form one entry, as do ranks of several hosts.
    """
    found: dict[object, list[Culprit]] = defaultdict(list)
    for c in culprits:
        role = (c.group.desc, c.group.dim, len(c.group.ranks))
        found[c.kind, c.how, role, c.collective, c.last_enqueued is None].append(c)
    return list(found.values())


def kind_text(culprit: Culprit) -> str:
    """Return the kind of a culprit, with what the rank did where the kind alone says it badly."""
    if culprit.how and culprit.how.startswith(culprit.kind):
        return clean(culprit.how)
    return culprit.kind + (f" ({clean(culprit.how)})" if culprit.how else "")


def hosts_text(same: Iterable[Culprit]) -> str:
    """Return the host of these culprits, or the number of their hosts; an empty text where none is known."""
    hosts = list(dict.fromkeys(c.host for c in same if c.host))
    return clean(hosts[0]) if len(hosts) == 1 else f"{len(hosts)} hosts" if hosts else ""


def groups_text(same: Iterable[Culprit]) -> str:
    """Return the first of the groups in which these culprits failed, and the number of further ones."""
    groups = list(dict.fromkeys(c.group for c in same))
    others = f" and {len(groups) - 1} more in its place" if len(groups) > 1 else ""
    return group_text(groups[0]) + others


def group_text(group: GroupRef) -> str:
    """Return the group as text: name, description, axis and members."""
    desc = f" {clean(group.desc)}" if group.desc else ""
    dim = f" [{group.dim}]" if group.dim else ""
    return f"group {clean(group.name)}{desc}{dim}" + some_ranks(" of ranks ", group.ranks)


def call_text(call: CallRef) -> str:
    """Return a call as text: operation, number, shapes of its inputs, and dtype."""
    shape = (
        ""
        if call.input_sizes is None
        else " " + ", ".join("x".join(map(str, s)) or "()" for s in call.input_sizes[:SHAPES_SHOWN])
    )
    dtype = f" {clean(call.dtype)}" if call.dtype else ""
    return f"{clean(call.op or 'call')} {call.seq}{shape}{dtype}"


def calls_shown(finding: HangFinding) -> list[tuple[str, tuple[Side, ...]]]:
    """Return, under a title each, the versions of every call in dispute, and the calls in which candidates wait."""
    disputed = [(c.collective.seq, c.group.name, c.sides) for c in finding.culprits if c.sides]
    disputed += [(call.seq, call.group.name, call.sides) for call in finding.open_calls]
    first = {sides: (seq, name) for seq, name, sides in reversed(disputed)}  # each once
    kept = dict.fromkeys(sides for _, _, sides in disputed)
    shown = [(f"call {first[s][0]} of group {clean(first[s][1])} as they made it", s) for s in kept]
    return [*shown, ("the candidates wait in", finding.waits)] if finding.waits else shown


def side_ranks(side: Side) -> str:
    """Return the ranks that made a version of a call; one that no member made is that of replicas or the past."""
    return ranks_text(side.ranks) or "usually"


def stacks_of(culprits: Iterable[Culprit]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the culprits' stacks, each under a title that names the call and the ranks, most ranks first.

    The stack is that of the disputed call where a rank made another call than its peers, else of its last recorded
    call.
    """
    shared: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for culprit in culprits:
        own = next((s.stack for s in culprit.sides if culprit.rank in s.ranks and s.stack), ())
        if own:
            shared[f"call {culprit.collective.seq} as {{}} made it", own].append(culprit.rank)
        elif culprit.stack:
            shared["last recorded call of {}", culprit.stack].append(culprit.rank)
    blocks = sorted(shared.items(), key=lambda item: (-len(item[1]), item[1]))
    return [(title.format(ranks_text(ranks)), stack) for (title, stack), ranks in blocks]


def least_most(numbers: Iterable[int | None]) -> str:
    """Return the least and the greatest of these numbers as text."""
    known = [number for number in numbers if number is not None]
    return span((min(known), max(known))) if known else "unknown"


def span(pair: tuple[int, int]) -> str:
    """Return two numbers as text, once where they are equal."""
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}-{pair[1]}"


def some_ranks(prefix: str, ranks: Iterable[int]) -> str:
    """Return ranks as text after `prefix`, as runs, cut after a few; an empty text without ranks."""
    text = ranges(ranks, RANK_RUNS_SHOWN)
    return prefix + text if text else ""


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as text after `rank` or `ranks`."""
    return rank_names(ranks, RANK_RUNS_SHOWN) if ranks else ""


def clean(text: str | None) -> str:
    """Return text from a dump made harmless for a terminal: control characters are shown, not obeyed."""
    return plain(text or "", mark=None)
