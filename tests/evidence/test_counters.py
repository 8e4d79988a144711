"""Counters of GPUs and hosts support an answer, with host and time; they name no rank by themselves."""

from tests.evidence.inspector import EPOCH_US, write
from tracekit import triage
from tracekit.evidence.counters import samples_of, signs_of

NODE = """# TYPE node_pressure_io_stalled_seconds_total counter
node_pressure_io_stalled_seconds_total 10.0 1000000
node_memory_MemTotal_bytes 1e9 1000000
node_memory_MemAvailable_bytes 5e8 1000000
node_cpu_seconds_total{{cpu="0",mode="steal"}} 1.0 1000000
node_pressure_io_stalled_seconds_total {} 1010000
node_memory_MemAvailable_bytes {} 1010000
node_cpu_seconds_total{{cpu="0",mode="steal"}} 1.1 1010000
"""
SMI = "timestamp, index, clocks.sm [MHz], temperature.gpu\n" + "".join(
    f"2026/11/18 04:00:00.000, {gpu}, {1200 if gpu == 3 else 1980} MHz, {91 if gpu == 3 else 60}\n"
    for gpu in range(8)
)


def texts(text, host="node1"):
    return [sign.text for sign in signs_of(samples_of(text.encode().splitlines(), host))]


def test_pressure_and_memory_are_shares_of_time():
    assert texts(NODE.format(14.0, 1e7)) == ["io pressure: tasks waited 40% of the time", "memory: 1.0% left"]
    assert texts(NODE.format(10.1, 4e8)) == []


def test_the_clock_of_one_gpu_is_low():
    assert texts(SMI) == ["GPU 3: 91 degrees Celsius", "GPU 3: clock 1200 MHz, the others 1980 MHz"]


def test_errors_bear_host_and_time():
    line = b'DCGM_FI_DEV_XID_ERRORS{gpu="2",Hostname="node7"} 79 1795778897220'
    (sign,) = signs_of(samples_of([line], "unknown"))
    assert (sign.host, sign.ms, sign.text) == ("node7", 1_795_778_897_220, "GPU 2: Xid 79")


def test_triage_quotes_counters_of_the_time(tmp_path):
    folder = write(tmp_path / "i")
    at = EPOCH_US // 1000
    (folder / "node1.prom").write_text(
        NODE.format(14.0, 5e8).replace("1000000", str(at)).replace("1010000", str(at + 10_000))
    )
    finding = triage([folder])
    assert [suspect.rank for suspect in finding.first.answer.suspects] == [5]
    told = next(row for row in finding.first.evidence if row.kind == "counters")
    assert "io pressure" in told.detail


def test_counters_alone_name_nothing(tmp_path):
    (tmp_path / "node1.csv").write_text(SMI)
    finding = triage([tmp_path])
    assert finding.first.answer is None
    assert "1200 MHz" in finding.first.evidence[0].detail


def test_seconds_of_openmetrics_are_times():
    line = b'DCGM_FI_DEV_XID_ERRORS{gpu="2",Hostname="node7"} 79 1795778897.22'
    (sample,) = samples_of([line], "unknown")
    assert sample.ms == 1_795_778_897_000


def test_a_time_beyond_every_calendar_is_unknown():
    line = b"node_memory_MemTotal_bytes 1e9 9223372036854775807"
    assert [sample.ms for sample in samples_of([line], "node1")] == [0]
