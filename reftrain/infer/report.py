"""What an engine's ranks wrote, as one answer: JSON and text."""

import json
from pathlib import Path
from typing import Any

from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.layout_documents import InferDocument

FOLDER = "infer"


def written(out: Path) -> list[dict[str, Any]]:
    """Return the answers of all ranks in OUT/infer, by rank."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (out / FOLDER).glob("rank*.json")]
    return sorted(found, key=lambda answer: int(answer["rank"]))


def answers_of(out: Path) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of every request of a run folder, by number; `ConfigError` where it holds none."""
    try:
        found = {int(r["number"]): r["tokens"] for rank in written(out) for r in rank["requests"]}
        count = max(len(found), 1)  # no folder of an engine lacks its first request
        return tuple(tuple(int(token) for token in found[number]) for number in range(count))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "--forced", f"{out} holds no answers of an engine", "name a folder of reftrain infer"
        ) from error


def document(config: RunConfig) -> InferDocument:
    """Return the measured answer of a run: the slowest rank's means, all replicas' rate, every request once."""
    ranks = written(Path(config.out))[: config.mesh.world_size]
    totals = [rank["total"] for rank in ranks]
    prefill, decode = (
        max(t[kind]["seconds"] / max(t[kind]["steps"], 1) for t in totals) for kind in ("prefill", "decode")
    )
    seconds = max(t["prefill"]["seconds"] + t["decode"]["seconds"] for t in totals)
    answers = {r["number"]: r["tokens"] for rank in ranks for r in rank["requests"]}
    made = sum(t["prefill"]["steps"] + t["decode"]["tokens"] for t in totals) / config.mesh.tp
    return {
        "schema": "reftrain.infer/1",
        "measured": True,
        "hardware": "this machine",
        "devices": config.mesh.world_size,
        "layouts": [
            {
                "tp": config.mesh.tp,
                "replicas": config.mesh.dp,
                "sharding": config.mesh.sharding,
                "memory_bytes": max(rank["cache_bytes"] for rank in ranks),
                "prefill_s": prefill,
                "decode_s": decode,
                "tokens_per_s": made / seconds,
                "fits": True,
            }
        ],
        "answers": [{"number": n, "tokens": answers[n]} for n in sorted(answers)],
    }


def text(found: InferDocument) -> str:
    """Return a measured answer as text."""
    (layout,) = found["layouts"]
    mesh = f"tp={layout['tp']} x {layout['replicas']} replicas ({layout['sharding']})"
    return (
        f"{len(found['answers'])} requests on {mesh}\n"
        f"prefill     {1e3 * layout['prefill_s']:.2f} ms a prompt\n"
        f"decode      {1e3 * layout['decode_s']:.2f} ms a token\n"
        f"throughput  {layout['tokens_per_s']:.1f} tokens/s, {layout['tokens_per_s'] / found['devices']:.1f} a device\n"
        f"cache       {layout['memory_bytes'] / 1024:.1f} KiB a device\n"
    )
