"""Misconfigurations are refused with one sentence that names the field and the remedy."""

import pytest
from tracekit_cli.exit_codes import of_error

from reftrain.config.checks import check_world
from reftrain.config.file import load, read_tables
from reftrain.config.presets import MODEL_PRESETS
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from tracekit.axes import AXES

MISCONFIGURATIONS = {
    "16 heads on tp 3": (
        {"model": {"heads": 16, "kv_heads": 16}, "mesh": {"tp": 3}},
        "mesh.tp: 16 heads cannot be split over tp 3; choose tp among 1, 2, 4, 8, 16",
    ),
    "micro-batches do not make the batch": (
        {"data": {"batch_size": 8, "micro_batch_size": 2, "micro_batches": 3}},
        "data.micro_batches: 3 micro-batches of 2 on dp 1 make 6 sequences, not 8; give 4, or leave it out",
    ),
    "cp does not cut the sequence": (
        {"mesh": {"cp": 3}},
        (
            "mesh.cp: the sequence of 64 tokens cannot be cut into 2·cp = 6 chunks; "
            "choose data.seq_len as a multiple of 6"
        ),
    ),
    "batch not over dp": (
        {"mesh": {"dp": 3}},
        "data.batch_size: 8 sequences do not split over dp 3 by 1 a micro-batch; choose a multiple of 3",
    ),
    "vocabulary not over tp": (
        {"model": {"vocab_size": 261}, "mesh": {"tp": 2}},
        "model.vocab_size: 261 is not a multiple of tp 2; set model.pad_vocab = true",
    ),
    "kv heads fewer than tp": (
        {"model": {"kv_heads": 2, "replicate_kv": False}, "mesh": {"tp": 4}},
        "model.kv_heads: 2 are fewer than tp 4; set model.replicate_kv = true or choose a smaller tp",
    ),
    "sequence parallel on an odd rest": (
        {"data": {"seq_len": 10}, "mesh": {"tp": 4}},
        (
            "mesh.sequence_parallel: 10 tokens a context rank cannot be split over tp 4; "
            "choose another data.seq_len or set sequence_parallel = false"
        ),
    ),
    "more stages than layers": (
        {"mesh": {"pp": 4}, "pipeline": {"virtual_stages": 2}},
        (
            "pipeline.virtual_stages: 4 layers do not fill 8 stages (pp 4, v 2); "
            "choose pp·v at most 4, or name pipeline.layers_per_stage"
        ),
    ),
    "layers named wrongly": (
        {"mesh": {"pp": 2}, "pipeline": {"layers_per_stage": [1, 2]}},
        (
            "pipeline.layers_per_stage: 2 numbers with sum 3 for 2 stages and 4 layers; "
            "give 2 numbers with sum 4"
        ),
    ),
    "no such preset": (
        {"model": {"preset": "9b"}},
        f"model.preset: '9b' is unknown; choose among {', '.join(MODEL_PRESETS)}",
    ),
    "misspelt field": ({"mesh": {"zreo": 3}}, "mesh.zreo: is not a field; did you mean zero?"),
    "misspelt table": ({"modle": {}}, "modle: is not a table; did you mean [model]?"),
    "wrong type": ({"run": {"steps": "4"}}, "run.steps: '4' has the wrong type; give a whole number"),
    "true for a number": (
        {"run": {"steps": True}},
        "run.steps: True has the wrong type; give a whole number",
    ),
    "no list": (
        {"evidence": {"trace_steps": 3}},
        "evidence.trace_steps: 3 has the wrong type; give a list in square brackets",
    ),
    "wrong type in a list": (
        {"evidence": {"trace_steps": [1, "x"]}},
        "evidence.trace_steps: 'x' has the wrong type; give a whole number",
    ),
    "number that no float holds": (
        {"optimizer": {"learning_rate": 10**400}},
        f"optimizer.learning_rate: 1{'0' * 39} is not a size; give a number below 1e+12",
    ),
    "number of many digits": (
        {"run": {"steps": 10**400}},
        f"run.steps: 1{'0' * 39} is not within bounds; give 1 to 1000000000",
    ),
    "field of another table": (
        {"model": {"seq_len": 3}},
        "model.seq_len: is not a field; did you mean data.seq_len?",
    ),
    "field of the run in a table": (
        {"model": {"device": "cpu"}},
        "model.device: is not a field; did you mean run.device?",
    ),
    "table in a table": ({"run": {"mesh": 3}}, "run.mesh: is not a field; did you mean [mesh]?"),
    "order misses an axis": (
        {"mesh": {"order": ["tp", "cp", "dp"]}},
        "mesh.order: tp,cp,dp is not a permutation of the axes; name tp, cp, pp, dp once each",
    ),
    "flash with document mask": (
        {"numerics": {"attention": "flash"}},
        "numerics.attention: flash knows no document mask; choose flex or sdpa, or document_mask = false",
    ),
    "1f1b with virtual stages": (
        {"mesh": {"pp": 2}, "pipeline": {"schedule": "1f1b", "virtual_stages": 2}},
        "pipeline.virtual_stages: 1f1b has one stage a rank; give 1, or schedule = flexible",
    ),
    "text without files": (
        {"data": {"source": "text"}},
        "data.files: source = text names no file; name at least one text file",
    ),
}


@pytest.mark.parametrize("case", MISCONFIGURATIONS)
def test_misconfiguration_is_refused(case):
    tables, message = MISCONFIGURATIONS[case]
    with pytest.raises(ConfigError) as caught:
        load(None, tables)
    assert str(caught.value) == message
    assert of_error(caught.value) == 2


def test_world_size_other_than_the_mesh():
    config = load(None, {"mesh": {"tp": 2, "dp": 2}})
    check_world(config, 4)
    with pytest.raises(ConfigError) as caught:
        check_world(config, 6)
    assert str(caught.value) == (
        "mesh: tp 2 * cp 1 * pp 1 * dp 2 = 4 ranks, but 6 were started; start 4 ranks or change the mesh"
    )


def test_file_over_preset_and_flags_over_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\npreset = "small"\nlayers = 2\n[run]\nsteps = 7\n[optimizer]\nlearning_rate = 1\n'
    )
    config = load(path, {"run": {"steps": 9}})
    assert (config.model.dim, config.model.layers, config.steps) == (384, 2, 9)
    assert config.optimizer.learning_rate == 1.0


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[model", "is not valid TOML"),
        ("steps = 3\n", "is outside a table"),
        (b"\xff\xfe", "is not valid TOML"),
    ],
)
def test_bad_file(tmp_path, text, part):
    path = tmp_path / "run.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=part):
        read_tables(path)


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("preset", "billions"), [("8b", 8.03), ("70b", 70.6), ("405b", 405.9), ("small", 0.0), ("tiny", 0.0)]
)
def test_presets_have_the_published_sizes(preset, billions):
    m = MODEL_PRESETS[preset]
    kv = m["dim"] // m["heads"] * m["kv_heads"]
    layer = 2 * m["dim"] ** 2 + 2 * m["dim"] * kv + 3 * m["dim"] * m["ffn_dim"] + 2 * m["dim"]
    total = m["layers"] * layer + 2 * m["vocab_size"] * m["dim"] + m["dim"]
    if billions:
        assert total / 1e9 == pytest.approx(billions, rel=2e-3)
    assert load(None, {"model": {"preset": preset}}).model.preset == preset


def test_every_field_says_what_it_means():
    from dataclasses import fields, is_dataclass

    config = RunConfig()
    tables = [getattr(config, f.name) for f in fields(config) if is_dataclass(getattr(config, f.name))]
    assert len(tables) == 11
    for table in [config, *tables]:
        for f in fields(table):
            if table is not config or not is_dataclass(getattr(config, f.name)):
                assert f.metadata["meaning"]
    assert AXES == ("tp", "cp", "pp", "dp")
