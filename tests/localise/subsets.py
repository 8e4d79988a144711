"""Which ranks were recorded."""

from random import Random

from tests.localise.job import Job

ODDS = {"all": 62, "tp_first": 9, "half_hosts": 9, "random60": 10, "no_culprit": 10}
"""Kinds of subsets and how often they are drawn."""
SHARE = 0.6


def draw_subset(job: Job, culprits: tuple[int, ...], random: Random) -> tuple[str, tuple[int, ...]]:
    """A kind of subset and its ranks, ascending."""
    everybody = range(job.layout.world)
    kind = random.choices(list(ODDS), list(ODDS.values()))[0]
    if kind == "tp_first" and job.layout.size("tp") > 1:
        return kind, tuple(rank for rank in everybody if job.layout.coords(rank)["tp"] == 0)
    if kind == "half_hosts" and job.layout.world >= 2 * job.per_host:
        return kind, tuple(rank for rank in everybody if rank // job.per_host % 2 == 0)
    if kind == "random60":
        return kind, tuple(sorted(random.sample(everybody, max(3, round(job.layout.world * SHARE)))))
    if kind == "no_culprit" and len(culprits) == 1:
        return kind, tuple(rank for rank in everybody if rank not in culprits)
    return "all", tuple(everybody)
