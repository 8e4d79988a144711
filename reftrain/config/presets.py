"""Named model shapes: four for tests on CPUs, three as published in "The Llama 3 Herd of Models", table 3.

`70b_vision` adds a cross-attention layer to every four self-attention layers ("Scaling Llama 3 Training", section 3.2).

`llama2_…` are the models of "Llama 2" (Touvron et al. 2023) with the batches of "Llama 2 with PyTorch/XLA SPMD",
table 3.

`8x7b` is the mixture of experts of Jiang et al. 2024, "Mixtral of Experts", table 1.

`sensitive` is made to let bugs show: uneven counts of valid tokens on every rank, micro-batch and chunk of a
sequence, documents across the chunks' ends, padding, a vocabulary that no tp divides, biases, norms of heads,
and enough sequences for three data-parallel ranks and several micro-batches.
"""

from reftrain.errors import ConfigError

MODEL_PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"layers": 4, "dim": 64, "heads": 8, "kv_heads": 4, "ffn_dim": 128, "vocab_size": 260},
    "sensitive": {
        "layers": 4,
        "dim": 96,
        "heads": 12,
        "kv_heads": 4,
        "ffn_dim": 192,
        "vocab_size": 261,
        "pad_vocab": True,
        "bias": True,
        "qk_norm": True,
    },
    "small": {"layers": 8, "dim": 384, "heads": 8, "kv_heads": 4, "ffn_dim": 1024, "vocab_size": 4096},
    "8b": {"layers": 32, "dim": 4096, "heads": 32, "kv_heads": 8, "ffn_dim": 14336, "vocab_size": 128256},
    "8x7b": {
        "layers": 32,
        "dim": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn_dim": 14336,
        "vocab_size": 32000,
        "experts": 8,
        "experts_per_token": 2,
    },
    "70b": {"layers": 80, "dim": 8192, "heads": 64, "kv_heads": 8, "ffn_dim": 28672, "vocab_size": 128256},
    "405b": {
        "layers": 126,
        "dim": 16384,
        "heads": 128,
        "kv_heads": 8,
        "ffn_dim": 53248,
        "vocab_size": 128256,
    },
    "llama2_7b": {
        "layers": 32,
        "dim": 4096,
        "heads": 32,
        "kv_heads": 32,
        "ffn_dim": 11008,
        "vocab_size": 32000,
    },
    "llama2_13b": {
        "layers": 40,
        "dim": 5120,
        "heads": 40,
        "kv_heads": 40,
        "ffn_dim": 13824,
        "vocab_size": 32000,
    },
    "llama2_70b": {
        "layers": 80,
        "dim": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn_dim": 28672,
        "vocab_size": 32000,
    },
    "tiny_vision": {
        "layers": 10,
        "dim": 64,
        "heads": 8,
        "kv_heads": 4,
        "ffn_dim": 128,
        "vocab_size": 260,
        "cross_every": 4,
        "frozen": True,
    },
    "70b_vision": {
        "layers": 100,
        "dim": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn_dim": 28672,
        "vocab_size": 128256,
        "cross_every": 4,
        "frozen": True,
    },
}

ENCODER_PRESETS: dict[str, dict[str, int]] = {
    "tiny_vision": {"layers": 2, "dim": 32, "heads": 4, "ffn_dim": 64, "tokens": 16, "patch": 12},
    "70b_vision": {"layers": 32, "dim": 1280, "heads": 16, "ffn_dim": 5120, "tokens": 2304, "patch": 588},
}
"""Image encoders of the presets with cross-attention: one for tests, and ViT-H with patches of 14 on 672 pixels."""

DATA_PRESETS: dict[str, dict[str, int | float]] = {
    "tiny": {"seq_len": 64, "batch_size": 8, "mean_document": 24},
    "sensitive": {
        "seq_len": 96,
        "batch_size": 24,
        "mean_document": 40,
        "padding": 0.5,
        "micro_batch_size": 1,
    },
    "tiny_vision": {"seq_len": 48, "batch_size": 8, "mean_document": 24},
    "small": {"seq_len": 256, "batch_size": 16, "mean_document": 96},
    "8b": {"seq_len": 8192, "batch_size": 512, "mean_document": 1024},
    "8x7b": {"seq_len": 8192, "batch_size": 512, "mean_document": 1024},
    "70b": {"seq_len": 8192, "batch_size": 1024, "mean_document": 1024},
    "llama2_7b": {"seq_len": 1024, "batch_size": 256, "mean_document": 512, "micro_batch_size": 16},
    "llama2_13b": {"seq_len": 1024, "batch_size": 256, "mean_document": 512, "micro_batch_size": 8},
    "llama2_70b": {"seq_len": 1024, "batch_size": 512, "mean_document": 512, "micro_batch_size": 16},
    "70b_vision": {"seq_len": 192, "batch_size": 4096, "mean_document": 96, "micro_batch_size": 4},
    "405b": {"seq_len": 8192, "batch_size": 2048, "mean_document": 1024},
}


def preset_tables(name: str, data: str = "") -> dict[str, dict[str, int | float | str]]:
    """Return the tables that a preset fills: model, encoder where it has one, and data (of preset `data`, if given).

    Raises `ConfigError` when there is no such preset.
    """
    if not isinstance(name, str) or name not in MODEL_PRESETS:
        raise ConfigError("model.preset", f"{name!r} is unknown", f"choose among {', '.join(MODEL_PRESETS)}")
    if data and not (isinstance(data, str) and data in DATA_PRESETS):
        raise ConfigError("data.preset", f"{data!r} is unknown", f"choose among {', '.join(DATA_PRESETS)}")
    tables: dict[str, dict[str, int | float | str]] = {
        "model": {"preset": name, **MODEL_PRESETS[name]},
        "data": {**DATA_PRESETS[data or name]},
    }
    return tables | ({"encoder": {**ENCODER_PRESETS[name]}} if name in ENCODER_PRESETS else {})
