"""`python -m tests.numerics.local.strangers_benchmark [--set SET] [NAME...]`: the local proof on `strangers`."""

import tempfile
from argparse import ArgumentParser
from functools import partial
from pathlib import Path

from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build
from numerics.local.proof import prove
from tests.numerics.local.drawing_strangers import dropouts, inlined, longer, sharded
from tests.numerics.local.second_strangers import llama_ddp, llama_fsdp, llama_tp
from tests.numerics.local.strangers import context, placed_context, replicas
from tests.numerics.local.third_strangers import (
    gathered_context,
    pipeline_ends,
    recomputed,
    sequence_parallel,
    sharded_optimizer,
    uneven_tokens,
)
from tests.ranks.pool import RankPool

BENIGN = {
    replicas: [
        *("", "buckets", "clipped", "ZeRO-1"),
        *("bias added apart", "attention by hand", "norm by hand", "gelu by erf"),
    ],
    context: [""],
}
BUGS = {
    replicas: {
        "one bucket not reduced": "layers.0.wide.up.weight.grad",
        "tied weights reduced twice": "emb.weight.grad",
        "mean of means": "loss",
        "padded tokens count": "loss",
        "accumulated in BF16": "emb.weight.grad",
        "each micro-batch reduced": "emb.weight.grad",
        "clipped by the local norm": "emb.weight.grad",
        "decay on biases": "layers.0.n1.weight",
        "one group's rate is stale": "layers.0.n1.weight",
        "ZeRO-1 sends one late": "layers.0.n2.bias",
        "gelu by tanh": "layers.1.wide.down.out",
        "rotary one late on a rank": "layers.1.mix.o.out",
    },
    context: {
        "positions begin again": "layers.1.mix.o.out",
        "mask off at the border": "layers.1.mix.o.out",
        "keys' gradients not summed": "layers.1.mix.qkv.out.grad",
        "norm's gradient not summed": "last.weight.grad",
    },
}
"""The tensor where each bug first shows."""

BENIGN[placed_context], BUGS[placed_context] = BENIGN[context], BUGS[context]

SECOND_BENIGN = {
    llama_ddp: ["", "attention by hand", "checkpointed", "small buckets", "clipped"],
    llama_fsdp: ["", "kept gathered"],
    llama_tp: ["", "gathered, then summed"],
}
SECOND_BUGS = {
    llama_ddp: {
        "RoPE base on one rank": "layers.1.attention.wo.out",
        "mask one late on a rank": "layers.0.attention.wo.out",
        "no decay on one rank": "words.weight",
        "last micro-batch not scaled": "loss",
        "no_sync a step too long": "words.weight.grad",
        "averaged twice": "words.weight.grad",
        "head scaled by rank": "head.weight.grad",
        "a rank skips its update": "words.weight",
        "reduced in BF16": "words.weight.grad",
    },
    llama_fsdp: {
        "clipped by the local norm": "words.weight.grad",
        "a shard skips its update": "words.weight",
        "sums in BF16": "words.weight.grad",
    },
    llama_tp: {
        "bias on every rank": "layers.0.mlp.down.out",
        "input's gradient not summed": "layers.1.norm2.out.grad",
    },
}
THIRD_BENIGN = {
    sequence_parallel: ["", "norms by hand"],
    gathered_context: [""],
    sharded_optimizer: [""],
    uneven_tokens: [""],
    pipeline_ends: [""],
    recomputed: [""],
}
THIRD_BUGS = {
    sequence_parallel: {"norm's gradient not summed": "feeds.0.norm.weight.grad"},
    gathered_context: {
        "mask of the rank before": "layers.1.o.out",
        "keys' gradients not summed": "layers.1.v.out.grad",
    },
    sharded_optimizer: {"shard not gathered": "words.weight"},
    uneven_tokens: {"averaged by ranks": "loss", "padding counted": "loss", "padding seen": "layers.0.o.out"},
    pipeline_ends: {"tied gradient not summed": "words.weight.grad"},
    recomputed: {"RNG not restored": "layers.1.down.out.grad", "one mask for all steps": "layers.0.drop.out"},
}
FOURTH_BENIGN = {
    dropouts: [
        *("", "recomputed", "forked", "tracker", "reseeded each step"),
        *("evaluated", "ranks alike", "twice alike"),
    ],
    inlined: ["", "reseeded each step", "evaluated", "forked around"],
    longer: ["rolled back", "rolled back, other data"],
    sharded: ["", "same seed", "copies"],
}
FOURTH_BUGS = {
    dropouts: {
        "forked, the same each step": "layers.0.drop.out",
        "tracker not stored": "layers.0.drop.out",
        "seeded by the epoch each step": "layers.0.drop.out",
        "evaluation reseeds": "layers.0.drop.out",
        "state restored": "layers.0.drop.out",
    },
    inlined: {"state restored": "rng.cpu", "evaluation reseeds": "rng.cpu"},
    sharded: {"set back": "feeds.0.drop.out", "copies, set back": "feeds.0.drop.out"},
}
SETS = {
    "first": (BENIGN, BUGS, "tests.numerics.local.strangers:tied"),
    "second": (SECOND_BENIGN, SECOND_BUGS, "tests.numerics.local.second_strangers:llama"),
    "third": (THIRD_BENIGN, THIRD_BUGS, "tests.numerics.local.third_strangers:plain"),
    "fourth": (FOURTH_BENIGN, FOURTH_BUGS, "tests.numerics.local.drawing_strangers:layers"),
}

MODELS = {
    sequence_parallel: "stack",
    pipeline_ends: "tied_ends",
    recomputed: "dropping",
    inlined: "inline",
    sharded: "stack",
}
"""The functions that build another model than the set's own."""

WORLDS = {context: 2, placed_context: 2, pipeline_ends: 4, dropouts: 2, inlined: 2, longer: 2, sharded: 2}
"""How many ranks a trainer has, where not 3."""


def main():
    """Print a row for each case: the verdict, the first tensor and the axis beside what is due."""
    asked = ArgumentParser()
    asked.add_argument("--set", choices=SETS, default="first")
    asked.add_argument("names", nargs="*", help="changes, or trainers")
    given = asked.parse_args()
    benign, planted, source = SETS[given.set]
    pool = RankPool()
    made = [(t, n, None) for t, names in benign.items() for n in names]
    made += [(t, n, place) for t, bugs in planted.items() for n, place in bugs.items()]
    print("| trainer | change | verdict | first tensor | due | axis | explanation |")
    print("|---|---|---|---|---|---|---|")
    for trainer, name, due in made:
        if given.names and not {name, trainer.__name__} & set(given.names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            pool.run(trainer, WORLDS.get(trainer, 3), Path(folder) / "run", name)
            module, _, function = source.partition(":")
            whole = build(f"{module}:{MODELS.get(trainer, function)}")
            proving = partial(prove, model=whole.model, optimizer=whole.optimizer)
            found = compare(Path(folder) / "run", None, Options(prove=proving))
        first = found.first_divergence
        place, axis = (first.tensor, first.axis) if first else ("–", "–")
        said = found.reason if found.verdict == "undecided" else "–"
        row = (trainer.__name__, name or "healthy", found.verdict, place, due or "no bug", axis)
        print("|", " | ".join(map(str, (*row, found.explanation or said))), "|", flush=True)
    pool.close()


if __name__ == "__main__":
    main()
