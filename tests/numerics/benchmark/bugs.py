"""Every bug of the catalogue in two layouts (FP32 and BF16) and at its magnitudes, with its true place."""

from collections.abc import Iterator, Mapping
from typing import Any

from reftrain.faults.bugs import catalogue
from reftrain.faults.bugs.bug import Bug
from tests.numerics.benchmark.case import Case, Tables, Where, merged

TP, CP, PP, DP = ("tp",), ("cp",), ("pp", "embedding"), ("dp", "dp_cp")
ANY_GRAD = r".*\.grad"
NUMBER = r"(-?\d|factor|times|ratio|scal)"
MISSING = r"missing|partial|not summed|unsummed|skipped|lacks|left out|unreduced|never"

TP2 = {"mesh": {"tp": 2}}
TP4 = {"mesh": {"tp": 4}}
TP2_NO_SP = {"mesh": {"tp": 2, "sequence_parallel": False}}
TP2_DP2 = {"mesh": {"tp": 2, "dp": 2}}
TP2_CP2 = {"mesh": {"tp": 2, "cp": 2}}
TP2_PP2 = {"mesh": {"tp": 2, "pp": 2}}
CP2 = {"mesh": {"cp": 2}}
CP2_DP2 = {"mesh": {"cp": 2, "dp": 2}}
RING3 = {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring"}}
RING2_TP2 = {"mesh": {"cp": 2, "tp": 2}, "numerics": {"cp_method": "ring"}}
PP2 = {"mesh": {"pp": 2}}
PP2_DP2 = {"mesh": {"pp": 2, "dp": 2}}
DP3 = {"mesh": {"dp": 3}}
EP3 = {"mesh": {"dp": 3, "ep": 3}, "model": {"experts": 3}}
SPMD = {"mesh": {"tp": 2, "dp": 2, "zero": 3, "sharding": "spmd_2d"}}
ENCODED = {"model": {"layers": 6, "cross_every": 1, "frozen": True}, "encoder": {"layers": 1}}
INSIDE = {**ENCODED, "encoder": {"layers": 1, "placement": "inside"}}
EP3_DP6 = {"mesh": {"dp": 6, "ep": 3}, "model": {"experts": 3, "expert_balance": 0.1}}
TP3_EP2 = {
    "mesh": {"tp": 3, "dp": 2, "ep": 2},
    "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "pad_vocab": True, "experts": 4},
}
BALANCED = {"model": {"expert_balance": 0.1}}
CP3 = {"mesh": {"cp": 3}}
PP3 = {"mesh": {"pp": 3}, "model": {"layers": 3}}
TP2_EP2 = {"mesh": {"tp": 2, "dp": 2, "ep": 2}, "model": {"experts": 4}}
DP3_ZERO3 = {"mesh": {"dp": 3, "zero": 3}}
FUSED = {"model": {"bias": True, "qk_norm": True, "fused_qkv": True}}
PADDED = {
    "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "pad_vocab": True},
    "mesh": {"tp": 3},
}
PADDED4 = {"model": {"vocab_size": 261, "pad_vocab": True}, "mesh": {"tp": 4}}
SMOOTH = {"numerics": {"label_smoothing": 0.1}}
COPIED = {"model": {"kv_heads": 2}}
TIED = {"model": {"tied_embeddings": True}}
DEEP = {"model": {"layers": 4}, "pipeline": {"virtual_stages": 2}}

LAYOUTS: Mapping[str, tuple[Tables, Tables]] = {
    "P01": (TP2, TP2_NO_SP),
    "P02": (TP2_NO_SP, TP2_DP2),
    "P03": (merged(TP2, FUSED), merged(TP2_DP2, {"model": {"bias": True}})),
    "P04": (TP2_NO_SP, TP4),
    "P06": (PADDED, PADDED4),
    "P07": (TP2, TP4),
    "P08": (TP2, TP2_DP2),
    "P09": (merged(TP2, SMOOTH), merged(TP4, SMOOTH)),
    "P11": (TP2, TP4),
    "P12": (merged(TP2, FUSED), merged(TP2_DP2, {"model": {"fused_qkv": True}})),
    "P14": (merged(TP4, COPIED), merged(TP4, {"model": {"kv_heads": 1}})),
    "P15": (merged(TP2, FUSED), merged(TP4, {"model": {"qk_norm": True}})),
    "P16": (TP2, TP4),
    "P17": (TP2, TP2_DP2),
    "P21": (CP2, {"mesh": {"cp": 4}}),
    "P22": (CP2, TP2_CP2),
    "P23": (CP2, CP2_DP2),
    "P25": (CP2, RING3),
    "P27": (CP2, TP2_CP2),
    "P28": (RING3, RING2_TP2),
    "P29": (PP2, TP2_PP2),
    "P30": (PP2_DP2, merged(PP2_DP2, {"mesh": {"zero": 3}})),
    "P31": (merged(PP2, TIED), merged(PP2_DP2, TIED)),
    "P32": (
        merged(PP2, {"numerics": {"recompute": "full"}}),
        {"mesh": {"dp": 2}, "numerics": {"recompute": "selective"}},
    ),
    "P34": (merged(PP2, DEEP), merged(PP2_DP2, DEEP)),
    "P36": (PP2, TP2_PP2),
    "P37": (DP3, DP3_ZERO3),
    "P38": (DP3, CP2_DP2),
    "P39": (DP3, PP2_DP2),
    "P41": (DP3, merged(PP2_DP2, {"mesh": {"zero": 2}})),
    "P42": (DP3, TP2_DP2),
    "P44": (DP3, TP2_DP2),
    "P45": (DP3, DP3_ZERO3),
    "P46": (TP2, TP2_DP2),
    "P49": (TP2, PP2_DP2),
    "P52": (TP2, DP3),
    "P53": (TP2, RING3),
    "P55": (DP3, TP2_PP2),
    "P56": (TP2, CP2_DP2),
    "P57": (EP3, TP2_EP2),
    "P58": (EP3, TP2_EP2),
    "P59": (TP2_EP2,),
    "P60": (SPMD,),
    "P61": (merged(INSIDE, {"mesh": {"pp": 3}}), merged(INSIDE, TP2, {"mesh": {"pp": 2}})),
    "P62": (merged(ENCODED, TP2), merged(INSIDE, TP2, {"mesh": {"pp": 2}})),
    "P63": (merged(TP3_EP2, BALANCED), merged(TP2_EP2, BALANCED)),
    "P64": (EP3_DP6, TP2_EP2),
    "P65": (EP3,),
    "P66": (CP3, {"mesh": {"cp": 4, "dp": 2}}),
    "P67": (PP3, PP2_DP2),
}
"""First in FP32, second in BF16."""

BF16_ONLY = frozenset({"P55"})
"""Cannot show in FP32: both layouts run in BF16."""

VERDICTS: Mapping[str, tuple[str, ...]] = {
    "P27": ("reporting_only",),
    "P44": ("precision_policy",),
    "P55": ("precision_policy",),
    "P56": ("precision_policy",),
    "P65": ("precision_policy",),
}


def true_place(name: str, values: Mapping[str, Any]) -> Where:
    """Where a bug first shows, whatever the layout."""
    layer = f"layers\\.{values.get('layer', 0)}"
    of = str(values.get("of", ""))
    column = f"{layer}\\.attention" if of != "w1" else f"{layer}\\.feed_forward"
    before = f"{layer}\\.attention_norm" if of != "w1" else f"{layer}\\.ffn_norm"
    row = f"{layer}\\.attention" if of != "w2" else f"{layer}\\.feed_forward"
    loss = r"(loss\.max|loss\.sums|output\.out)"
    head = r"(output|)"
    places = {
        "P01": Where(
            f"{before}\\.out\\.grad|{column}\\.(qkv|w1)\\.grad", f"{before}|{column}.*", TP, MISSING
        ),
        "P02": Where(f"{row}\\.(out|wo|w2)", f"{row}.*", TP, MISSING),
        "P03": Where(r"layers\.0\.attention\.(wo|wo\.out|out)", r"layers\.0\.attention.*", (), ""),
        "P04": Where(f"{row}\\.(out|wo|w2)", f"{row}.*", TP, r"factor|times|twice|double"),
        "P06": Where(loss, head, TP),
        "P07": Where(loss, head, TP, r"log|factor|times|double|twice"),
        "P08": Where(loss, head, TP, MISSING + "|maximum"),
        "P09": Where(loss, head, TP),
        "P11": Where(r"tok_embeddings(\.out)?", r"(tok_embeddings|)", TP),
        "P12": Where(
            r"layers\.0\.attention\.qkv\.(queries|keys|values|[qk]_norm\.out)", r"layers\.0\.attention.*", ()
        ),
        "P14": Where(
            r"kv\.partial_gradients|layers\.\d+\.attention\.qkv\.w[kv]\.weight\.grad",
            r"(layers\.\d+\.attention.*|)",
            (*TP, "kv"),
            MISSING,
        ),
        "P15": Where(
            r"tp\.partial_gradients|layers\.\d+\.attention\.qkv\.[qk]_norm\.weight\.grad",
            r"(layers\.\d+\.attention.*|)",
            TP,
            MISSING,
        ),
        "P16": Where(r"[\w.]+\.(weight|bias)", r".*", TP, "", -1),
        "P17": Where(r"tp\.partial_gradients|norm\.weight\.grad", r"(norm|)", TP, MISSING),
        "P21": Where(r"output\.out\.grad", head, CP, NUMBER),
        "P22": Where(r"targets", r"", CP, r"shift|boundar|roll|chunk|last"),
        "P23": Where(r"rope|positions", r"", CP),
        "P25": Where(r"mask|layers\.\d+\.attention\.wo\.in", r"(layers\.\d+\.attention.*|)", CP),
        "P27": Where(r"loss", r"", ()),
        "P28": Where(r"layers\.0\.attention\.wo\.in", r"layers\.0\.attention.*", ()),
        "P29": Where(r"output\.out\.grad", head, (), NUMBER),
        "P30": Where(ANY_GRAD, r".*", (), MISSING + "|last|micro-batch"),
        "P31": Where(
            r"tied_embedding\.grad|(tok_embeddings|output)\.weight\.grad",
            r"(tok_embeddings|output|)",
            PP,
            MISSING,
        ),
        "P32": Where(
            r"layers\.\d+\.attention\.(wo\.in|out)(\.recomputed)?|layers\.\d+\.attention\.qkv.*\.grad",
            r"layers\.\d+\.attention.*",
            (),
        ),
        "P34": Where(
            f"layers\\.{int(values.get('rank', 0)) + 2}\\.attention_norm\\.out",
            r"layers\.\d.*",
            (),
            "value of",
        ),
        "P36": Where(r"layers\.1\.[\w.]+\.(weight|bias)", r"layers\.1.*", (), "", -1),
        "P37": Where(f"{layer}\\.{of}\\.weight\\.grad|{layer}\\.grad", f"{layer}.*", DP, MISSING),
        "P38": Where(ANY_GRAD, r".*", DP, NUMBER),
        "P39": Where(r"valid_tokens|output\.out\.grad", head, ()),
        "P41": Where(ANY_GRAD, r".*", DP),
        "P42": Where(r"data\.tokens|data\.targets", r"", DP),
        "P44": Where(ANY_GRAD, r".*", DP, r"bf16|bfloat16"),
        "P45": Where(
            f"{layer}\\.(attention_norm|attention\\.qkv\\.w[qkv])\\.out",
            f"{layer}.*",
            (),
            "stale|previous|step before",
            1,
        ),
        "P46": Where(r"grad_norm", r"", TP),
        "P49": Where(r"(layers\.\d+\.)?\w*norm\.weight", r".*norm", ()),
        "P52": Where(r"layers\.0\.attention_norm\.out", r"layers\.0\.attention_norm", ()),
        "P53": Where(r"layers\.0\.attention\.wo\.in", r"layers\.0\.attention.*", ()),
        "P57": Where(r"layers\.0\.feed_forward\..*", r"layers\.0\.feed_forward.*", ()),
        "P58": Where(r"layers\.\d\.feed_forward\.experts.*", r"layers\.\d\.feed_forward.*", ()),
        "P59": Where(r"layers\.\d\.feed_forward\.router.*", r"layers\.\d\.feed_forward\.router", TP),
        "P60": Where(
            rf"{layer}\.(feed_forward|attention\.qkv).*", rf"{layer}\.(feed_forward|attention).*", TP
        ),
        "P61": Where(r"image_tokens\.grad|encoder\..*\.grad", r"encoder.*|", (*PP, *TP)),
        "P62": Where(r"image_tokens\.grad|encoder\..*\.grad", r"encoder.*|", TP, MISSING),
        "P63": Where(r"layers\.\d\.feed_forward\.router.*", r"layers\.\d\.feed_forward.*", ()),
        "P64": Where(
            r"(ep\.gradients|layers\.\d\.feed_forward\.experts.*)", r"layers\.\d\.feed_forward.*|", ()
        ),
        "P65": Where(
            r"layers\.0\.feed_forward\.router.*", r"layers\.0\.feed_forward.*", (), r"bf16|bfloat16"
        ),
        "P66": Where(ANY_GRAD, r".*", CP, NUMBER),
        "P67": Where(r"output\.out\.grad", head, (), r"missing|zero"),
        "P55": Where(ANY_GRAD, r".*", (), r"bf16|bfloat16"),
        "P56": Where(
            r"rope|layers\.0\.attention\.qkv\.(queries|keys)",
            r"(layers\.0\.attention.*|)",
            (),
            r"bf16|bfloat16",
        ),
    }
    return places[name]


def text_of(bug: Bug, values: Mapping[str, Any]) -> str:
    """As users plant it."""
    return bug.name + (":" + ",".join(f"{k}={v}" for k, v in values.items()) if values else "")


def bug_cases() -> Iterator[Case]:
    """All planted bugs: magnitudes times layouts."""
    for bug in catalogue().values():
        for values in bug.magnitudes:
            for number, layout in enumerate(LAYOUTS[bug.name]):
                policy = "bf16" if number or bug.name in BF16_ONLY else "fp32"
                fault = text_of(bug, values)
                run = merged(layout, {"numerics": {"policy": policy}, "evidence": {"faults": [fault]}})
                alone = {table: v for table, v in layout.items() if table in {"model", "encoder", "numerics"}}
                keep = {"label_smoothing"}
                numerics = {k: v for k, v in alone.get("numerics", {}).items() if k in keep}
                baseline = {**alone, "numerics": {**numerics, "policy": policy}}
                sizes = layout["mesh"]
                mesh = "·".join(f"{a}{sizes[a]}" for a in ("tp", "cp", "pp", "dp") if sizes.get(a, 1) > 1)
                yield Case(
                    name=f"{fault} {mesh} {policy}" + (f" zero{sizes['zero']}" if "zero" in sizes else ""),
                    what=bug.what,
                    parallel=run,
                    baseline=baseline,
                    verdicts=VERDICTS.get(bug.name, ("bug",)),
                    where=true_place(bug.name, {f: k.default for f, k in bug.fields.items()} | dict(values)),
                )
