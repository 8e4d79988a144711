"""Configurations of reftrain that are refused, and what the refusals advise."""

from pathlib import Path

from tracekit_cli.reftrain_commands.run_settings import tables_of

from reftrain.config.checks import check_world
from reftrain.config.fault_spec import parse_fault
from reftrain.config.file import load
from reftrain.config.run import RunConfig
from reftrain.cost.hardware import load_hardware, parse_hardware
from reftrain.data.sequences import SyntheticSource, TextSource
from reftrain.faults.bugs import parse_bug
from reftrain.faults.registry import read_faults
from reftrain.schedule.costs import check_costs, parse_costs
from reftrain.schedule.generators import make_schedule
from reftrain.simulate import packing
from tests.advice.register import calls, case


def configured(settings: str) -> RunConfig:
    """The configuration of `table.field=value` settings, joined by blanks."""
    return load(None, tables_of(None, None, settings.split()))


CROSSES = "model.layers=10 model.cross_every=4"
IMAGES = f"encoder.layers=1 {CROSSES}"
SETTINGS = [
    ("heads cannot be split over tp {}", "mesh.tp=3 model.heads=4 model.dim=96", "mesh.tp=2"),
    ("ffn_dim {} cannot be split", "mesh.tp=2 model.ffn_dim=129", "mesh.tp=2 model.ffn_dim=128"),
    ("is not a multiple of tp {}", "mesh.tp=2 model.vocab_size=257",
     "mesh.tp=2 model.vocab_size=257 model.pad_vocab=true"),
    ("key/value heads and tp {} do not divide", "mesh.tp=2 model.heads=12 model.kv_heads=3 model.dim=96",
     "mesh.tp=3 model.heads=12 model.kv_heads=3 model.dim=96 model.ffn_dim=192 model.pad_vocab=true data.seq_len=96"),
    ("are fewer than tp {}", "mesh.tp=2 model.kv_heads=1 model.replicate_kv=false", "mesh.tp=2 model.kv_heads=1"),
    ("cannot copy {} key/value heads", "mesh.tp=2 model.kv_heads=1 model.fused_qkv=true",
     "mesh.tp=2 model.kv_heads=1 model.fused_qkv=false"),
    ("cannot be cut into 2·cp", "mesh.cp=2 data.seq_len=66", "mesh.cp=2 data.seq_len=64"),
    ("tokens a context rank cannot be split", "mesh.tp=2 data.seq_len=63 mesh.sequence_parallel=true",
     "mesh.tp=2 data.seq_len=63 mesh.sequence_parallel=false"),
    ("flash cannot mask the chunks", "mesh.cp=2 numerics.attention=flash numerics.document_mask=false",
     "mesh.cp=2 numerics.attention=sdpa"),
    ("sequences do not split over dp {}", "mesh.dp=3 data.batch_size=8", "mesh.dp=3 data.batch_size=9"),
    ("sequences, not {}", "data.micro_batches=3 data.batch_size=8", "data.batch_size=8"),
    ("there is no whole buffer to shadow", "evidence.shadow_gradients=true mesh.zero=2 mesh.dp=2",
     "evidence.shadow_gradients=true mesh.zero=1 mesh.dp=2"),
    ("has no GPUs to share", "run.share_gpus=true run.device=cpu", "run.share_gpus=false run.device=cpu"),
    ("keeps no history on a CPU", "evidence.memory_snapshot=true run.device=cpu", "run.device=cpu"),
    ("is not among the run's steps", "evidence.trace_steps=[9] run.steps=3", "evidence.trace_steps=[2] run.steps=3"),
    ("pipeline.schedule: {} is unknown; choose among {}", "pipeline.schedule=x", "pipeline.schedule=1f1b"),
    ("numbers with sum {} for {} stages", "mesh.pp=2 pipeline.layers_per_stage=[1,2,1] model.layers=4",
     "mesh.pp=2 pipeline.layers_per_stage=[1,3] model.layers=4"),
    ("layers do not fill {} stages", "mesh.pp=8 model.layers=4", "mesh.pp=4 model.layers=4"),
    ("splits backwards, which recomputation", "pipeline.schedule=zb_h1 numerics.recompute=full mesh.pp=2",
     "pipeline.schedule=zb_h1 numerics.recompute=none mesh.pp=2"),
    ("step one by one without a flush", "pipeline.schedule=pipedream optimizer.clip_norm=1 mesh.pp=2",
     "pipeline.schedule=pipedream optimizer.clip_norm=0 mesh.pp=2"),
    ("mesh.dp_shard: groups of {} and ep {} are not joined",
     "mesh.dp=4 mesh.dp_shard=2 mesh.zero=1 mesh.ep=2 model.experts=4",
     "mesh.dp=4 mesh.zero=1 mesh.ep=2 model.experts=4"),
    ("mesh.ep: {} does not divide dp", "mesh.dp=4 mesh.ep=3 model.experts=6", "mesh.dp=4 mesh.ep=2 model.experts=6"),
    ("experts cannot be dealt to ep {}", "mesh.dp=2 mesh.ep=2 model.experts=3", "mesh.dp=2 mesh.ep=2 model.experts=4"),
    ("mesh.zero: 0 copies whole models, which ep {} cuts", "mesh.dp=2 mesh.ep=2 mesh.zero=0 model.experts=4",
     "mesh.dp=2 mesh.ep=2 mesh.zero=1 model.experts=4"),
    ("model.bias: experts have no biases", "model.experts=4 model.bias=true", "model.experts=4 model.bias=false"),
    ("cannot be counted in the pieces of cp", "mesh.cp=2 model.experts=4 model.expert_capacity=1.0",
     "mesh.cp=2 model.experts=4 model.expert_capacity=0.0"),
    ("are more than {} experts; choose 1 to", "model.experts=2 model.experts_per_token=3",
     "model.experts=2 model.experts_per_token=2"),
    ("no layer reads the encoder's tokens", "encoder.layers=1", f"encoder.layers=1 {CROSSES}"),
    ("cross-attention has no image tokens", CROSSES, f"encoder.layers=1 {CROSSES}"),
    ("leaves a text model nothing to train", "model.frozen=true", "model.frozen=false"),
    ("cannot be combined with cross-attention layers", f"{IMAGES} model.experts=4", "model.experts=4"),
    ("are no whole groups of {} + 1; give a multiple", f"{IMAGES} model.layers=9", f"{IMAGES} model.layers=10"),
    ("takes queries and keys of two inputs", f"{IMAGES} model.fused_qkv=true", f"{IMAGES} model.fused_qkv=false"),
    ("ties weights that do not train", f"{IMAGES} model.tied_embeddings=true model.frozen=true",
     f"{IMAGES} model.tied_embeddings=false model.frozen=true"),
    ("a virtual stage holds whole groups", f"{IMAGES} mesh.pp=2 pipeline.layers_per_stage=[4,6]",
     f"{IMAGES} mesh.pp=2 pipeline.layers_per_stage=[5,5]"),
    ("would cut a group of layers", f"{IMAGES} mesh.pp=2 pipeline.balanced=true",
     f"{IMAGES} mesh.pp=2 pipeline.layers_per_stage=[5,5]"),
    ("heads and ffn_dim {} are split over tp", f"{IMAGES} encoder.heads=1 mesh.tp=2",
     f"{IMAGES} encoder.heads=4 mesh.tp=2"),
    ("images are encoded before each step", f"{IMAGES} mesh.pp=2 pipeline.schedule=pipedream optimizer.clip_norm=0",
     f"{IMAGES} mesh.pp=2 pipeline.schedule=flexible"),
    ("loses the gradients of image tokens", f"{IMAGES} mesh.pp=2 pipeline.schedule=zb_h1",
     f"{IMAGES} mesh.pp=2 pipeline.schedule=flexible"),
    ("encoder.heads: {} does not divide dim", f"{IMAGES} encoder.heads=5", f"{IMAGES} encoder.heads=4"),
    ("{}.{}: {} is not within bounds; give {} to {}", "run.steps=0", "run.steps=1"),
    ("{}.{}: {} is unknown; choose among {}", "run.device=tpu", "run.device=cpu"),
    ("is not a table; did you mean", "modle.layers=2", "model.layers=2"),
    ("is not a field; did you mean", "model.document_mask=false", "numerics.document_mask=false"),
    ("is not a size; give a number below {}", "optimizer.clip_norm=" + "9" * 400, "optimizer.clip_norm=1"),
    ("has the wrong type; give {}", 'model.layers="two"', "model.layers=2"),
    ("model.heads: {} does not divide dim", "model.heads=5 model.dim=64", "model.heads=4 model.dim=64"),
    ("choose heads so that RoPE can pair it", "model.heads=4 model.dim=36 model.kv_heads=2",
     "model.heads=6 model.dim=36 model.kv_heads=2"),
    ("does not divide heads {}; choose", "model.heads=4 model.kv_heads=3", "model.heads=4 model.kv_heads=2"),
    ("is not a permutation of the axes", 'mesh.order=["tp","tp","pp","dp"]', 'mesh.order=["tp","cp","pp","dp"]'),
    ("reduces layer by layer; set", "mesh.zero=1 mesh.bucket_mb=1", "mesh.zero=0 mesh.bucket_mb=1"),
    ("mesh.dp_shard: {} does not divide dp", "mesh.dp=4 mesh.dp_shard=3", "mesh.dp=4 mesh.dp_shard=2 mesh.zero=1"),
    ("zero = 0 shards nothing", "mesh.dp=4 mesh.dp_shard=2 mesh.zero=0", "mesh.dp=4 mesh.dp_shard=2 mesh.zero=1"),
    ("model.preset: {} is unknown", "model.preset=9b", "model.preset=8b"),
    ("evidence.trackers: {} is unknown", 'evidence.trackers=["tensorbord"]', 'evidence.trackers=["tensorboard"]'),
    ("data.preset: {} is unknown", "data.preset=9b", "data.preset=tiny"),
    ("leaves no token; give a share", "data.padding=1.0", "data.padding=0.5"),
    ("source = text names no file", "data.source=text", 'data.source=text data.files=["README.md"]'),
    ("is not a share; give 0 up to", "numerics.label_smoothing=1.0", "numerics.label_smoothing=0.5"),
    ("flash knows no document mask", "numerics.attention=flash", "numerics.attention=flex"),
]  # fmt: skip
for _part, _wrong, _right in SETTINGS:
    calls(_part, configured, _wrong, _right)


def fault(text: str) -> object:
    """A fault read for a run of eight ranks."""
    return parse_fault(text, 8)


FAULTS = [
    ("fault: no such kind", "slow_compte:rank=5,factor=2", "slow_compute:rank=5,factor=2"),
    ("fault.{}: {} has no such field; it takes {}", "slow_compute:rank=5,delay=2", "slow_compute:rank=5,factor=2"),
    ("is not of the form name=value", "slow_compute:rank", "slow_compute:rank=5,factor=2"),
    ("given twice; give it once", "slow_compute:rank=5,rank=6,factor=2", "slow_compute:rank=5,factor=2"),
    ("strikes one rank and none is given", "slow_compute:factor=2", "slow_compute:factor=2,rank=0"),
    ("is not a rank of a world of {}", "slow_compute:rank=8,factor=2", "slow_compute:rank=7,factor=2"),
    ("fault.{}: '{}' is unknown; choose among {}", "host_stall:rank=1,axis=xp", "host_stall:rank=1,axis=dp"),
    ("fault.{}: '{}' is not a number", "slow_compute:rank=5,factor=x", "slow_compute:rank=5,factor=2"),
    ("fault.{}: {} is out of bounds; give a number {}", "slow_compute:rank=5,factor=-1",
     "slow_compute:rank=5,factor=2"),
    ("is not a range of steps; {}", "slow_compute:rank=5,factor=2,steps=x", "slow_compute:rank=5,factor=2,steps=2:8"),
    ("holds no step; {}", "slow_compute:rank=5,factor=2,steps=8:2", "slow_compute:rank=5,factor=2,steps=2:8"),
]  # fmt: skip
for _part, _wrong, _right in FAULTS:
    calls(_part, fault, _wrong, _right)


def planted(settings: str) -> object:
    """The faults of a configuration of two steps, checked against it."""
    return read_faults(configured(f"run.steps=2 {settings}"))


calls(
    "no rank communicates on {}",
    planted,
    'mesh.dp=2 evidence.faults=["host_stall:rank=1,axis=tp"]',
    'mesh.dp=2 evidence.faults=["host_stall:rank=1,axis=dp"]',
)
calls(
    "strikes at communication, and one rank has none",
    planted,
    'evidence.faults=["host_stall:rank=0"]',
    'mesh.dp=2 evidence.faults=["host_stall:rank=0"]',
)
calls(
    "would begin in step {} of a run",
    planted,
    'evidence.faults=["slow_compute:rank=0,factor=2,steps=5:"]',
    'run.steps=6 evidence.faults=["slow_compute:rank=0,factor=2,steps=5:"]',
)


def bug(text: str) -> object:
    """A planted bug read for two tensor ranks."""
    return parse_bug(text, configured("mesh.tp=2"))


calls("fault: no bug '{}'", bug, "P99", "P01")
calls("has no such field; it takes {}, as name=value", bug, "P01:x=1", "P01")


@case("were started; start {} ranks or change the mesh")
def _(_folder, _patch):
    return lambda: check_world(configured("mesh.dp=2"), 4), lambda: check_world(configured("mesh.dp=4"), 4)


def written(folder: Path, name: str, text: str) -> Path:
    """A file with a text."""
    (folder / name).write_text(text)
    return folder / name


def file_case(part: str, wrong: str, right: str = "[model]\nlayers = 2\n") -> None:
    """Enter a case of a configuration's file."""

    def made(folder, _patch):
        path = folder / "c.toml"
        return lambda: load(written(folder, "c.toml", wrong), {}), lambda: (
            written(folder, "c.toml", right),
            load(path, {}),
        )

    case(part)(made)


file_case("is not valid TOML ({}); correct the file", "[model\nlayers = 2\n")
file_case("is outside a table", "steps = 2\n", "[run]\nsteps = 2\n")


@case("{}: {}; give a readable TOML file")
def _(folder, _patch):
    return lambda: load(folder / "absent.toml", {}), lambda: load(written(folder, "c.toml", ""), {})


HARDWARE = Path("reftrain/cost/hardware/h100.toml").read_text()
MACHINES = [
    ("is not TOML: {}; correct the file", "[", HARDWARE),
    ("{}: unknown {}; choose among {}", HARDWARE + "\n[x]\na = 1\n", HARDWARE),
    ("{} is missing; add it", HARDWARE.replace("node_size", "#"), HARDWARE),
    ("is not a count; give 1 to {} devices", HARDWARE.replace("node_size = 8", "node_size = 0"), HARDWARE),
    ("device.reserved_gib leaves no memory", HARDWARE.replace("reserved_gib = ", "reserved_gib = 9999"), HARDWARE),
    ("is below {}; give what the machine has", HARDWARE.replace("peak_tflops = ", "peak_tflops = 0 #"), HARDWARE),
    ("give the number of processors, or 0", HARDWARE.replace("units = 132", "units = 0.5"), HARDWARE),
    ("{}.{} is below 0; give 0 or more", HARDWARE.replace("reserved_gib = ", "reserved_gib = -"), HARDWARE),
    ("{}.{} {} is not a number; give 0 to {}", HARDWARE.replace("reserved_gib = ", "reserved_gib = true #"), HARDWARE),
    ("is not a table; write [{}]", "device = 1\n" + HARDWARE.replace("[device]", "[operations]"), HARDWARE),
    ("--hardware: {}; choose among {}", HARDWARE.replace("peak_tflops", "peak_tflop"), HARDWARE),
]  # fmt: skip
for _part, _wrong, _right in MACHINES:
    calls(_part, lambda text: parse_hardware(text, "x.toml"), _wrong, _right)
calls("is not a known machine", load_hardware, "h900", "h100")
COSTS = [
    ("write name=number with names among {}", "x=1", "f=1"),
    ("has one value, not one a stage", "p2p=1:2", "p2p=1"),
    ("write for example f=1,b=2,p2p=0.1", "f=x", "f=1,b=2,p2p=0.1"),
    ("is out of bounds; give 0 to {}", "f=-1", "f=1"),
]
for _part, _wrong, _right in COSTS:
    calls(_part, parse_costs, _wrong, _right)
calls("give {} values, or one", lambda text: check_costs(parse_costs(text), 4), "f=1:2", "f=1:2:3:4")
calls("give both i and w, or a larger b", lambda text: check_costs(parse_costs(text), 2), "i=9", "i=9,w=1")


def table(sizes: tuple[object, ...]) -> object:
    """A schedule by name, p, v, m and k."""
    return make_schedule(*sizes)  # type: ignore[arg-type]


calls("pipeline.schedule: {} is unknown; choose {}", table, ("x", 2, 1, 4, 1), ("1f1b", 2, 1, 4, 1))
calls("a size is below 1; give p, v, m", table, ("1f1b", 0, 1, 4, 1), ("1f1b", 1, 1, 4, 1))
calls("{}: {} {}; {}", table, ("1f1b", 2, 1, 1_000_000, 1), ("1f1b", 2, 1, 4, 1))


@case("--hardware: {} cannot be read: {}")
def _(folder, _patch):
    (folder / "m.toml").write_bytes(b"\xff\xfe")
    return (
        lambda: load_hardware(str(folder / "m.toml")),
        lambda: load_hardware(str(written(folder, "m.toml", HARDWARE))),
    )


def data(settings: str) -> object:
    """The configuration's data."""
    return configured(settings).data


def text_of(folder: Path, length: int, seq_len: int = 64, vocabulary: int = 258) -> object:
    """Sequences of a text file of so many bytes."""
    path = written(folder, "text.txt", "x" * length)
    found = configured(f'data.source=text data.files=["{path}"] data.seq_len={seq_len}').data
    return TextSource(found, vocabulary)


calls("is too small for documents", lambda size: SyntheticSource(data("run.seed=0"), size), 8, 16)


@case("does not hold the 256 bytes, eos and padding")
def _(folder, _patch):
    return lambda: text_of(folder, 999, vocabulary=200), lambda: text_of(folder, 999)


@case("bytes do not fill one sequence of {}")
def _(folder, _patch):
    return lambda: text_of(folder, 20), lambda: text_of(folder, 20, seq_len=8)


@case("data.files: {}: {}; name readable text files")
def _(folder, _patch):
    absent = configured(f'data.source=text data.files=["{folder}/absent"]').data
    return lambda: TextSource(absent, 258), lambda: text_of(folder, 999)


@case("data.seq_len: {} tokens cannot be cut into {} chunks")
def _(_folder, _patch):
    return (
        lambda: packing.Packing(66, 1, 24, 0).pairs(0, 1, 1, 4),
        lambda: packing.Packing(64, 1, 24, 0).pairs(0, 1, 1, 4),
    )


@case("{}: {}: {}; {}")
def _(folder, _patch):
    wrong = written(folder, "c.toml", "[run]\nsteps = 0\n")
    return lambda: load(wrong, {}), lambda: load(written(folder, "c.toml", "[run]\nsteps = 1\n"), {})
