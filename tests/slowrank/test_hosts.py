"""The place of each rank by a user's file: hostfiles, tables, Slurm's topology; wrong files are refused by line."""

import pytest

import tracekit
from tests.slowrank.jobs import grid, job
from tracekit.errors import InputError, TracekitError, UsageError
from tracekit.placement import Place, read_hosts
from tracekit.thresholds.ingest import MAX_HOSTS_FILE


def places(tmp_path, text, world=6, hosts=None):
    path = tmp_path / "hosts"
    path.write_text(text, encoding="utf-8")
    return read_hosts(path).of_job(world, hosts or {})


@pytest.mark.parametrize(
    "text",
    [
        "# job 7\na slots=2 max_slots=4\n\nb slots=2\nc slots=9\n",
        "a:2\nb:2\nc:2\n",
        "a\nb\nc\n",
        "rank,host\n4,c\n5,c\n0,a\n1,a\n2,b\n3,b\n",
        "\ufeffHost\tRank\r\na\t0\r\na\t1\r\nb\t2\r\nb\t3\r\nc\t4\r\nc\t5\r\n",
    ],
)
def test_hostfiles_and_tables_place_ranks(tmp_path, text):
    found = places(tmp_path, text)
    assert [found[rank].host for rank in range(6)] == ["a", "a", "b", "b", "c", "c"]


def test_a_table_gives_switch_and_rail(tmp_path):
    found = places(tmp_path, "rank,host,switch,nic\n0,a,s1,mlx5_0\n1,a,,mlx5_1\n")
    assert found == {0: Place("a", "s1", "mlx5_0"), 1: Place("a", "", "mlx5_1")}


def test_topology_of_slurm_gives_switches(tmp_path):
    text = (
        "n01:2\nn02:2\nn07:2\nSwitchName=s1 Level=0 Nodes=n[01-02]\nSwitchName=s2 Nodes=n[04-05,07],login\n"
    )
    text += "SwitchName=top Level=1 Nodes=n[01-09] Switches=s[1-2]\n"
    assert [p.switch for p in places(tmp_path, text).values()] == ["s1", "s1", "s1", "s1", "s2", "s2"]
    beside_traces = places(tmp_path, "host,switch\na,s1\n", hosts={0: "a", 1: "b"})
    assert beside_traces == {0: Place("a", "s1")}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("rank,host\n0,a\n0,b\n", 3, "rank 0 is in line 2 already"),
        ("rank,host\n-1,a\n", 2, "'-1' is no rank"),
        ("rank,host\n999999999,a\n", 2, "is no rank"),
        ("rank,host\n0,a,b\n", 2, "3 values in a row"),
        ("rank,host\n0,\n", 2, "'' is no name of a host"),
        ("rank,host\n0,../x\x1b[31m\n", 2, "is no name of a host"),
        ("host,rail\na,0\n", 1, "the column rank is missing"),
        ("host,colour\na,0\n", 1, "is not that of a table of places"),
        ("host,host\na,b\n", 1, "is not that of a table of places"),
        ("host,switch\na,s1\na,s2\n", 3, "host a is on switch s1 and on s2"),
        ("a slots=0\n", 1, "the slots of a host"),
        ("a slots=many\n", 1, "the slots of a host"),
        ("a:2 slots=2\n", 1, "the slots of a host"),
        ("<html>\n", 1, "is no name of a host"),
        ("SwitchName=s Nodes=n[1-999999]\n", 1, "is no name of a host"),
        ("SwitchName=s Nodes=n[1-\n", 1, "is no name of a host"),
        ("SwitchName=s Nodes=n[1-200000]\nSwitchName=s Nodes=n[1-200000]\n", 2, "more than 262144 nodes"),
    ],
)
def test_wrong_lines_are_refused_with_their_number(tmp_path, text, line, reason):
    with pytest.raises(InputError, match=r"; \S+ \S+") as refused:
        places(tmp_path, text)
    assert f"hosts:{line}: " in str(refused.value)
    assert reason in str(refused.value)
    assert "\x1b" not in str(refused.value)


def test_files_that_are_none_are_refused(tmp_path):
    for content in (b"", b"# nothing\n", b"\xff\xfe\x00", b"a\n" * (MAX_HOSTS_FILE // 2 + 1)):
        (tmp_path / "hosts").write_bytes(content)
        with pytest.raises(InputError, match=r"hosts: .*;"):
            read_hosts(tmp_path / "hosts")
    with pytest.raises(InputError, match="cannot be read"):
        read_hosts(tmp_path)


def test_files_of_another_job_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"hosts:3: rank 6 is outside the job of 6 ranks"):
        places(tmp_path, "rank,host\n0,a\n6,b\n")
    for world in (None, 7):
        with pytest.raises(TracekitError, match="names 3 hosts without slots"):
            places(tmp_path, "a\nb\nc\n", world)


def test_the_file_completes_the_suspects_host(tmp_path):
    run = job(tmp_path, grid(dp=6), slow={3: 1.5})
    hosts = tmp_path / "hosts"
    hosts.write_text("rank,host\n0,a\n1,a\n3,b\n4,b\n5,b\n", encoding="utf-8")
    found = tracekit.slowrank(run, hosts=hosts)
    assert [(s.rank, s.host) for s in found.suspects] == [(3, "b")]
    (gap,) = [q for q in found.quality if q.kind == "hosts_incomplete"]
    assert "rank 2 no place" in gap.detail
    assert not [q for q in found.quality if q.kind == "hosts_contradict"]


@pytest.mark.parametrize(
    ("slow", "table", "part"),
    [
        ((4, 5), "rank,host\n" + "".join(f"{r},n{r // 2}\n" for r in range(8)), "all ranks of host n2"),
        ((4, 6), "rank,host\n" + "".join(f"{r},n{r // 2}\n" for r in range(8)), None),
        ((4,), "rank,host\n" + "".join(f"{r},n{r}\n" for r in range(8)), None),
        (
            (2, 6),
            "rank,host,rail\n" + "".join(f"{r},n{r // 4},{r % 4}\n" for r in range(8)),
            "all ranks of rail 2",
        ),
        (
            (4, 5, 6, 7),
            "rank,host,switch\n" + "".join(f"{r},n{r // 2},s{r // 4}\n" for r in range(8)),
            "all ranks of switch s1",
        ),
    ],
    ids=["a host", "two hosts", "one rank", "a rail", "a switch"],
)
def test_slow_ranks_that_share_a_part_are_shown(tmp_path, slow, table, part):
    (tmp_path / "hosts").write_text(table)
    run = job(tmp_path, grid(dp=8), slow=dict.fromkeys(slow, 1.4))
    found = tracekit.slowrank(run, hosts=tmp_path / "hosts")
    assert {suspect.rank for suspect in found.suspects} == set(slow)
    assert ("they are " + part in found.reason) if part else ("they are" not in found.reason)
