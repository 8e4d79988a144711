import pytest

from reftrain.cost.hardware import GIB, known_hardware, load_hardware, parse_hardware
from reftrain.errors import ConfigError

H100 = load_hardware("h100")
TEXT = """
name = "x"
source = "y"
node_size = 4
[device]
peak_tflops = 100
memory_gib = 16
reserved_gib = 1
memory_gb_s = 500
[efficiency]
[host]
[node]
gb_s = 100
[network]
gb_s = 10
"""


@pytest.mark.parametrize("name", known_hardware())
def test_known_machines_load_and_say_where_they_come_from(name):
    hardware = load_hardware(name)
    assert hardware.name == name
    assert len(hardware.source) > 10
    assert 0 < hardware.usable_bytes < hardware.device.memory_gib * GIB


def test_the_machines_of_the_docs_are_there():
    assert {"h100", "h200", "a100", "p100", "cpu"} <= set(known_hardware())


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    hardware = load_hardware(str(path))
    assert (hardware.flops_per_s, hardware.node.bytes_per_s) == (1e14, 1e11)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("node_size = 4", "node_size = 0"), "node_size"),
        (("node_size = 4", "node_size = true"), "node_size"),
        (("peak_tflops = 100", "peak_tflops = 'fast'"), "device.peak_tflops"),
        (("peak_tflops = 100", "peak_tflops = -1"), "device.peak_tflops"),
        (("peak_tflops = 100", "peak_tflops = inf"), "device.peak_tflops"),
        (("peak_tflops = 100", ""), "device.peak_tflops"),
        (("reserved_gib = 1", "reserved_gib = 17"), "leaves no memory"),
        (("memory_gib = 16", "memory_gb = 16"), "device.memory_gb"),
        (("[host]", "[hosts]"), "hosts"),
        (("[host]\n", ""), "host"),
        (("[host]", "[host"), "not TOML"),
    ],
)
def test_a_bad_file_is_refused_naming_its_field(change, says):
    with pytest.raises(ConfigError) as error:
        parse_hardware(TEXT.replace(*change), "mine.toml")
    assert says in str(error.value)
    assert "mine.toml" in str(error.value)


@pytest.mark.parametrize("name", ["h1000", "absent.toml", "../h100", "/etc/passwd"])
def test_an_unknown_machine_names_the_known_ones(name):
    with pytest.raises(ConfigError, match="h100"):
        load_hardware(name)


def test_one_constant_changes():
    for name, value in H100.constants().items():
        changed = H100.with_constant(name, 1.2 * value).constants()
        assert changed == {**H100.constants(), name: 1.2 * value}
    with pytest.raises(KeyError):
        H100.with_constant("device.colour", 1.0)
