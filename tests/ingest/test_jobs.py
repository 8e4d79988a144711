"""Files of several jobs are told apart, and captures of one job are not."""

import pytest

from tracekit.errors import InputError, UsageError
from tracekit.files.job_choice import jobs_of, refused
from tracekit.files.witness import Window, Witness

SECOND = 1_000_000_000


def file(label, rank, *, steps=range(10, 15), at=None, seconds=5, host=None, **told):
    begin = (min(steps) if at is None else at) * SECOND
    window = Window(rank, begin, begin + seconds * SECOND, frozenset(steps), host)
    return Witness(label, label, (window,), **told)


def job(folder="", ranks=range(4), **told):
    return [file(f"{folder}/rank{r}.json" if folder else f"rank{r}.json", r, **told) for r in ranks]


def sizes(files):
    return [len(j.files) for j in jobs_of(files)]


def named(rank, size, desc="mesh_tp"):
    first = rank - rank % size
    return {"groups": ((desc, tuple(range(first, first + size))),)}


def test_two_captures_are_one_job():
    assert sizes([*job("a"), *job("b", steps=range(50, 55))]) == [8]
    assert sizes([*job("a"), *job("b", steps=range(50, 55), at=3000)]) == [8]
    assert sizes(job() + [file(f"later{r}.json", r, steps=range(50, 55)) for r in range(4)]) == [8]


def test_captures_in_renamed_files_are_one_job():
    assert sizes([*job("a", host="first-node"), *job("b", steps=range(50, 55), host="second-node")]) == [8]


@pytest.mark.parametrize(
    "other",
    [
        {"steps": range(10, 15), "at": 90},
        {"steps": range(12, 17), "at": 90},
        {"steps": range(5), "at": 90},
        {"steps": range(50, 55), "at": 3 * 86400},
        {"steps": (), "at": 12},
        {"steps": (), "at": 90, "host": "b"},
    ],
    ids=["same steps", "some steps", "steps go back", "days later", "same time", "other hosts"],
)
def test_second_recordings_are_told_apart(other):
    first = {"host": "a"} if "host" in other else {}
    assert sizes([*job("monday", **first), *job("tuesday", **other)]) == [4, 4]


def test_names_or_times_tell_recordings_in_one_folder():
    one = [file(f"x_rank{r}.json", r) for r in range(4)]
    assert sizes(one + [file(f"y_rank{r}.json", r, at=90) for r in range(4)]) == [4, 4]
    one = [file(f"{r}.{1000 + r}.json", r) for r in range(4)]
    assert sizes(one + [file(f"{r}.{9000 + r}.json", r, at=9000) for r in range(4)]) == [4, 4]


def test_folders_by_host_are_no_jobs():
    days = [("monday", 10), ("tuesday", 90_000)]
    files = [file(f"{day}/host{r // 2}/rank{r}.json", r, at=at) for day, at in days for r in range(4)]
    assert [j.name for j in jobs_of(files)] == ["folder monday", "folder tuesday"]
    files = [file(f"host{r // 2}/{day}/rank{r}.json", r, at=at) for day, at in days for r in range(4)]
    assert sizes(files) == [4, 4]
    assert sizes([file(f"host{r // 2}/rank{r}.json", r) for r in range(4)]) == [4]


def test_part_of_a_run_is_another_job():
    assert sizes([*job("a", range(8)), *job("b", range(3), at=90)]) == [8, 3]


def test_recorded_runs_are_jobs():
    assert sizes([*job("a/trace", run="a"), *job("b/trace", range(4, 8), run="b")]) == [4, 4]
    assert sizes(job("a/trace", run="a")) == [4]


def test_other_group_sizes_or_members_are_other_jobs():
    two = [file(f"{r}", r, **named(r, 2)) for r in range(4)]
    four = [file(f"{r}", r, **named(r, 4)) for r in range(4, 8)]
    assert [j.name for j in jobs_of(two + four)] == ["mesh_tp groups of 2", "mesh_tp groups of 4"]
    strided = [file(f"{r}", r, groups=(("mesh_tp", tuple(sorted((r, (r + 4) % 8)))),)) for r in range(4, 8)]
    assert sizes(two + strided) == [4, 4]
    assert sizes(two + [file(f"{r}", r, **named(r, 2)) for r in range(4, 8)]) == [8]


def test_programs_of_one_world_are_one_job():
    two = [file(f"{r}", r, world=8, **named(r, 2)) for r in range(4)]
    four = [file(f"{r}", r, world=8, **named(r, 4)) for r in range(4, 8)]
    assert sizes(two + four) == [8]
    assert sizes([*two, file("odd", 0, world=8, **named(0, 4))]) == [4, 1]


def test_a_few_files_of_another_job_are_left_out():
    files = [*job(ranks=range(7), world=8), file("odd", 7, world=64)]
    reasons, number = refused(files, None)
    assert (list(reasons), number) == (["odd"], 1)
    assert reasons["odd"].endswith("--job 2 reads it")


def test_several_jobs_are_refused_until_one_is_chosen():
    files = [*job("a", world=8), *job("b", range(4, 7), world=64), file("c", 9)]
    with pytest.raises(InputError, match=r"2 jobs.*1: world size 8, 5 ranks, .*--job 1"):
        refused(files, None)
    assert set(refused(files, 2)[0]) == {"c", *(f"a/rank{r}.json" for r in range(4))}
    with pytest.raises(UsageError, match="choose one of these"):
        refused(files, 3)
    assert refused(job(), 2) == ({}, None)


def test_order_of_files_changes_nothing():
    files = [*job("a", world=8), *job("b", at=90, world=8), file("c", 9, world=64)]
    assert jobs_of(files) == jobs_of(files[::-1])
