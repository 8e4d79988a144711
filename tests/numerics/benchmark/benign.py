"""Benign changes: pairs of runs that compute the same thing, and what may be said of them."""

from tests.numerics.benchmark.case import Case, Tables, merged

ONE: Tables = {}
FP32: Tables = {"numerics": {"policy": "fp32"}}
BF16: Tables = {"numerics": {"policy": "bf16"}}
PURE: Tables = {"numerics": {"policy": "bf16_pure"}}
SINGLE: Tables = {"data": {"micro_batch_size": 1}}
CHAOS: Tables = {
    "model": {"layers": 1},
    "data": {"batch_size": 4, "seq_len": 32, "micro_batch_size": 2},
    "optimizer": {"learning_rate": 0.05, "warmup_steps": 0},
    "run": {"steps": 200},
    "evidence": {"capture": "digest"},
}


def mesh(**sizes: object) -> Tables:
    return {"mesh": sizes}


def numerics(**values: object) -> Tables:
    return {"numerics": values}


def pair(
    name: str, what: str, common: Tables, parallel: Tables, baseline: Tables, *verdicts: str, **more: object
) -> Case:
    return Case(name, what, merged(common, parallel), merged(common, baseline), verdicts, **more)  # type: ignore[arg-type]


DRIFT, EQUAL = "drift", "identical"
NO_MASK = numerics(document_mask=False)

BENIGN = (
    pair("D01 bf16", "TP 1 to 2", BF16, mesh(tp=2), ONE, DRIFT),
    pair("D01 fp32", "TP 1 to 2", FP32, mesh(tp=2), ONE, DRIFT),
    pair("D02", "TP 1 to 4", BF16, mesh(tp=4), ONE, DRIFT),
    pair(
        "D03 same",
        "TP 2, sums in FP32 or BF16",
        BF16,
        merged(mesh(tp=2), numerics(tp_reduce="fp32")),
        mesh(tp=2),
        EQUAL,
    ),
    pair(
        "D03 tp1",
        "TP 1 to 2 with sums in FP32",
        BF16,
        merged(mesh(tp=2), numerics(tp_reduce="fp32")),
        ONE,
        DRIFT,
    ),
    pair("D04 tp2", "SP on and off, TP 2", FP32, mesh(tp=2), mesh(tp=2, sequence_parallel=False), DRIFT),
    pair("D04 tp4", "SP on and off, TP 4", BF16, mesh(tp=4), mesh(tp=4, sequence_parallel=False), DRIFT),
    pair("D05", "DP 1 to 2", FP32, mesh(dp=2), ONE, DRIFT),
    pair("D05 dp3", "DP 1 to 3", BF16, mesh(dp=3), ONE, DRIFT),
    pair(
        "D07 2",
        "micro-batch 1 to 2, BF16 accumulation",
        PURE,
        {"data": {"micro_batch_size": 2}},
        SINGLE,
        DRIFT,
    ),
    pair(
        "D07 6",
        "micro-batch 1 to 6, BF16 accumulation",
        PURE,
        {"data": {"micro_batch_size": 6}},
        SINGLE,
        DRIFT,
    ),
    pair(
        "D08 2",
        "micro-batch 1 to 2, FP32 accumulation",
        BF16,
        {"data": {"micro_batch_size": 2}},
        SINGLE,
        DRIFT,
    ),
    pair(
        "D08 6",
        "micro-batch 1 to 6, FP32 accumulation",
        BF16,
        {"data": {"micro_batch_size": 6}},
        SINGLE,
        DRIFT,
    ),
    pair("D09", "PP 1 to 2, same micro-batches", BF16, mesh(pp=2), ONE, EQUAL, DRIFT),
    pair("D09 dp2", "PP 1 to 2 at DP 2", FP32, mesh(pp=2, dp=2), mesh(dp=2), EQUAL, DRIFT),
    pair(
        "D10 gpipe",
        "GPipe against 1F1B",
        BF16,
        merged(mesh(pp=2), {"pipeline": {"schedule": "gpipe"}}),
        merged(mesh(pp=2), {"pipeline": {"schedule": "1f1b"}}),
        EQUAL,
        DRIFT,
    ),
    pair(
        "D10 chunks",
        "interleaved against 1F1B",
        merged(FP32, {"model": {"layers": 4}}),
        merged(mesh(pp=2), {"pipeline": {"virtual_stages": 2}}),
        merged(mesh(pp=2), {"pipeline": {"schedule": "1f1b"}}),
        EQUAL,
        DRIFT,
    ),
    pair("D11 cp2", "CP 1 to 2", FP32, mesh(cp=2), ONE, DRIFT),
    pair("D11 cp4", "CP 1 to 4", BF16, mesh(cp=4), ONE, DRIFT),
    pair(
        "D13",
        "ring attention against all-gather",
        FP32,
        merged(mesh(cp=3), numerics(cp_method="ring")),
        mesh(cp=3),
        DRIFT,
    ),
    pair("D15", "bucket size", merged(FP32, mesh(dp=3, zero=0)), {"mesh": {"bucket_mb": 0.02}}, ONE, DRIFT),
    pair(
        "D17",
        "HSDP 2x2 against FSDP over 4",
        merged(FP32, SINGLE, mesh(dp=4, zero=3)),
        mesh(dp_shard=2),
        ONE,
        DRIFT,
    ),
    pair(
        "D18",
        "fused against foreach AdamW",
        merged(FP32, mesh(dp=2)),
        {"optimizer": {"implementation": "fused"}},
        ONE,
        DRIFT,
        EQUAL,
    ),
    pair(
        "D19",
        "math against fused attention",
        FP32,
        numerics(attention="math"),
        numerics(attention="sdpa"),
        DRIFT,
    ),
    pair(
        "D19 flash",
        "math against flash attention, no mask",
        merged(BF16, NO_MASK),
        numerics(attention="math"),
        numerics(attention="flash"),
        DRIFT,
    ),
    pair("D21", "threads 1 against 2", merged(BF16, mesh(dp=2)), {"run": {"threads": 2}}, ONE, EQUAL, DRIFT),
    pair(
        "D22",
        "ATEN_CPU_CAPABILITY avx2",
        FP32,
        mesh(tp=2),
        ONE,
        "incomparable",
        environment={"ATEN_CPU_CAPABILITY": "avx2"},
    ),
    pair(
        "D22 same mesh",
        "ATEN_CPU_CAPABILITY avx2",
        BF16,
        mesh(dp=2),
        mesh(dp=2),
        "incomparable",
        environment={"ATEN_CPU_CAPABILITY": "avx2"},
    ),
    pair(
        "D23",
        "loss logged by a stacked sum",
        merged(FP32, SINGLE),
        numerics(loss_log="stacked"),
        ONE,
        "reporting_only",
    ),
    pair(
        "D24",
        "-0.0 through a vocabulary-parallel embedding",
        merged(FP32, {"model": {"zero_columns": 16}}),
        mesh(tp=2),
        ONE,
        "signed_zero",
        DRIFT,
    ),
    pair("D25", "recomputation", merged(BF16, mesh(tp=2)), numerics(recompute="full"), ONE, EQUAL),
    pair(
        "D25 cp",
        "selective recomputation",
        merged(FP32, mesh(cp=2)),
        numerics(recompute="selective"),
        ONE,
        EQUAL,
    ),
    pair("D28", "200 steps at a high rate", merged(FP32, CHAOS), mesh(dp=2), ONE, DRIFT),
    pair(
        "4D",
        "tp2·cp2·pp2·dp2 against one process",
        merged(BF16, SINGLE),
        mesh(tp=2, cp=2, pp=2, dp=2),
        ONE,
        DRIFT,
    ),
)
