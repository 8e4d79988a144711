"""Named model shapes: two for tests on CPUs, three as published in "The Llama 3 Herd of Models", table 3."""

from reftrain.errors import ConfigError

MODEL_PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"layers": 4, "dim": 64, "heads": 8, "kv_heads": 4, "ffn_dim": 128, "vocab_size": 260},
    "small": {"layers": 8, "dim": 384, "heads": 8, "kv_heads": 4, "ffn_dim": 1024, "vocab_size": 4096},
    "8b": {"layers": 32, "dim": 4096, "heads": 32, "kv_heads": 8, "ffn_dim": 14336, "vocab_size": 128256},
    "70b": {"layers": 80, "dim": 8192, "heads": 64, "kv_heads": 8, "ffn_dim": 28672, "vocab_size": 128256},
    "405b": {
        "layers": 126,
        "dim": 16384,
        "heads": 128,
        "kv_heads": 8,
        "ffn_dim": 53248,
        "vocab_size": 128256,
    },
}

DATA_PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"seq_len": 64, "batch_size": 8, "mean_document": 24},
    "small": {"seq_len": 256, "batch_size": 16, "mean_document": 96},
    "8b": {"seq_len": 8192, "batch_size": 512, "mean_document": 1024},
    "70b": {"seq_len": 8192, "batch_size": 1024, "mean_document": 1024},
    "405b": {"seq_len": 8192, "batch_size": 2048, "mean_document": 1024},
}


def preset_tables(name: str) -> dict[str, dict[str, int | str]]:
    """Tables of the configuration that a preset fills: model and data.

    Raises `ConfigError` when there is no such preset.
    """
    if name not in MODEL_PRESETS:
        raise ConfigError("model.preset", f"{name!r} is unknown", f"choose among {', '.join(MODEL_PRESETS)}")
    return {"model": {"preset": name, **MODEL_PRESETS[name]}, "data": {**DATA_PRESETS[name]}}
