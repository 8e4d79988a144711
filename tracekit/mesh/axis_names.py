"""Names for the axes that were found: description first, then behaviour, then position."""

from collections.abc import Mapping, Sequence

from tracekit.axes import AXES, CONTEXT, DATA, PIPELINE, TENSOR
from tracekit.errors import MeshUnknownError
from tracekit.mesh.families import Family
from tracekit.thresholds.inference import ALTERNATING, MANY_CALLS, MOSTLY_EXPOSED

_PAIR = 2


def name_axes(
    axes: list[Family],
    order: Sequence[str] | None,
    notes: list[str],
    programs: Mapping[int, object] | None = None,
) -> list[tuple[str, list[Family]]]:
    """Return the axes with their names, inner to outer; axes of one name are merged.

    Names come from descriptions first, then from behaviour, then from position. order: axes inner to outer, where the
    user gave it. notes: takes a sentence where names were guessed. programs: what each rank runs, where messages have
    no known peer. Raises MeshUnknownError if nothing shows along which axis those run.
    """
    if all(a.regular for a in axes):
        inner_first = sorted(axes, key=lambda a: (round(a.stride, 6), a.size))
    else:  # ranks numbered otherwise: the axis that communicates most often is the inner one
        inner_first = sorted(axes, key=lambda a: (-a.calls - a.p2p, a.size, a.groups[0].ranks))
    names: dict[int, str] = {}
    for i, axis in enumerate(inner_first):
        if len(axis.hints) == 1:
            names[i] = next(iter(axis.hints))
    dealing = [
        i for i, axis in enumerate(inner_first) if i not in names and any(g.dealt for g in axis.groups)
    ]
    if dealing:  # experts are spread over replicas, beside groups of those that hold the same ones
        alike = [i for i, a in enumerate(inner_first) if i not in names and not a.p2p and _looks(a) == DATA]
        names.update(dict.fromkeys([*dealing, *alike], DATA))
    free = [i for i in range(len(inner_first)) if i not in names]
    if free:
        _guess(inner_first, free, names, order, programs)
        by_position = ", ".join(f"{names[i]}={inner_first[i].size}" for i in free)
        notes.append(f"axes without a clear description are named by their use and position: {by_position}")
    merged: dict[str, list[Family]] = {}
    for i, axis in enumerate(inner_first):
        merged.setdefault(names[i], []).append(axis)
    return list(merged.items())


def _guess(
    axes: list[Family],
    free: list[int],
    names: dict[int, str],
    order: Sequence[str] | None,
    programs: Mapping[int, object] | None,
) -> None:
    """Names for axes that nothing describes, or several names do, which each keeps to.

    Messages to and fro make a pipeline, the outermost of the rest is data.
    """
    left = [d for d in (order or AXES) if d not in names.values()]
    if order is not None and len(left) >= len(free):
        chosen = left if len(left) == len(free) else _likely(left, len(free))
        names.update(zip(free, chosen, strict=True))
        return
    turning = [i for i in free if programs is not None and _turns(axes, i, free, programs)]
    around = [i for i in free if (axes[i].ring or i in turning) and _may_be(axes[i], CONTEXT)]
    rings = bool(around) or any(axis.ring for axis in axes)
    if CONTEXT in left and around:
        names[around[0]] = CONTEXT
        free = [i for i in free if i != around[0]]
        left = [d for d in left if d != CONTEXT]
    able = [i for i in free if _may_be(axes[i], PIPELINE)] if PIPELINE in left else []
    if (piped := _pipeline(axes, able, programs, rings=rings)) is not None:
        names[piped] = PIPELINE
        free = [i for i in free if i != piped]
        left = [d for d in left if d != PIPELINE]
    names.update(_as_described(axes, free, left))
    free, left = [i for i in free if i not in names], [d for d in left if d not in names.values()]
    wanted = _likely([d for d in left if d != PIPELINE], len(free))
    looks = [_looks(axes[i]) for i in free]
    if len(set(looks)) == len(looks) and set(looks) <= set(left):
        wanted = looks
    if len(wanted) < len(free):
        wanted = [*wanted, *[d for d in left if d not in wanted], *[DATA] * len(free)][: len(free)]
    names.update(zip(free, wanted, strict=True))


def _as_described(axes: list[Family], free: list[int], left: Sequence[str]) -> dict[int, str]:
    """Names for the axes that several names describe: one of these and of `left`, what it looks like, else data."""
    names: dict[int, str] = {}
    for i in (i for i in free if axes[i].hints):
        able = axes[i].hints.intersection(left) - set(names.values())
        names.update([(i, name) for name in (_looks(axes[i]), DATA, *left) if name in able][:1])
    return names


def _may_be(axis: Family, name: str) -> bool:
    """Whether descriptions of the axis name it so among others, or none describes it."""
    return not axis.hints or name in axis.hints


def _pipeline(
    axes: list[Family], able: list[int], programs: Mapping[int, object] | None, *, rings: bool
) -> int | None:
    """The axis that is the pipeline, of those `able` to be it; None without one.

    rings: whether some axis sends messages around. Messages without a known peer are along the axis where ranks run
    different programs, or call nothing else, or both. Raises MeshUnknownError where several may be it.
    """
    piped = [i for i in able if axes[i].p2p > 0 and not axes[i].ring]
    if piped:
        return max(piped, key=lambda i: (axes[i].stride, axes[i].p2p))
    shown = [i for i in able if programs is not None and _differs(axes[i], programs)]
    if programs is None or not able or (rings and not shown):
        return None
    silent = [i for i in able if not axes[i].calls] if any(a.calls for a in axes) else []
    for found in (shown, silent, [i for i in shown if i in silent]):
        if len(found) == 1:
            return found[0]
    raise MeshUnknownError(
        "messages name no peer, so the traces do not show which process groups lie along the pipeline"
    )


def _differs(axis: Family, programs: Mapping[int, object]) -> bool:
    """Whether ranks of some group run different programs."""
    return any(len({programs[r] for r in g.ranks if r in programs}) > 1 for g in axis.groups)


def _turns(axes: list[Family], at: int, free: list[int], programs: Mapping[int, object]) -> bool:
    """Whether messages without a known peer go round on an axis that alone may carry them: all run one program.

    They name their group, or it is the only one that calls nothing else. Ends of a pipeline of three stages or more
    talk to one neighbour, the others to two.
    """
    axis = axes[at]
    known = all(r in programs for g in axis.groups for r in g.ranks)
    carry = [i for i, a in enumerate(axes) if any("send_recv" in g.ops for g in a.groups)]
    silent = [i for i in free if not axes[i].calls] if any(a.calls for a in axes) else []
    alone = (carry or silent) == [at]
    return alone and known and axis.size > _PAIR and not any(_differs(axes[i], programs) for i in free)


def _looks(axis: Family) -> str:
    """The name of the axis that communicates as this one does.

    Tensor parallelism alternates gathers and scatters (or all-reduces) many times and waits for them; context
    parallelism gathers layer after layer; data parallelism calls seldom, or behind compute, or sends tokens to experts.
    """
    shown = [g for g in axis.groups if g.collectives]
    if not shown or axis.calls < MANY_CALLS or sum(g.exposed for g in shown) / len(shown) <= MOSTLY_EXPOSED:
        return DATA
    kinds = frozenset().union(*(g.ops for g in shown))
    if "all_to_all" in kinds:
        return DATA
    alternating = sum(g.alternation for g in shown) / len(shown) > ALTERNATING
    return TENSOR if alternating or "all_reduce" in kinds else CONTEXT


def _likely(dims: Sequence[str], count: int) -> list[str]:
    """The `count` axes that a job most likely has (data, then tensor, pipeline, context), in the order given."""
    rank = {DATA: 0, TENSOR: 1, PIPELINE: 2, CONTEXT: 3}
    chosen = set(sorted(dims, key=lambda d: rank[d])[:count])
    return [d for d in dims if d in chosen]
