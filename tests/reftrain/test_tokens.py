"""Tokenised data sets: the same documents from every form, sequences by number, and files that lie."""

import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from reftrain.config.file import load
from reftrain.config.run import DataConfig
from reftrain.data.batches import IGNORED, Loader
from reftrain.data.columns import ColumnFile
from reftrain.data.megatron import MAGIC, MegatronFile
from reftrain.data.tokens import TokenSource
from reftrain.errors import ConfigError
from tests.reftrain import workers

EOS = 99
DOCUMENTS = [[int(v) for v in np.random.default_rng(n).integers(0, 99, 3 + 7 * n % 11)] for n in range(9)] + [
    []
]


def parquet(folder, documents=DOCUMENTS, kind=None, name="input_ids"):
    kind = kind or pa.list_(pa.int32())
    pq.write_table(pa.table({name: pa.array(documents, kind)}), folder / "d.parquet", row_group_size=2)
    return folder / "d.parquet"


def arrow(folder, documents=DOCUMENTS, stream=False):
    table = pa.table(
        {"tokens": pa.array(documents, pa.large_list(pa.int64())), "text": ["…"] * len(documents)}
    )
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(folder / "d.arrow"), table.schema) as sink:
        sink.write_table(table, max_chunksize=3)
    return folder / "d.arrow"


def index(lengths, offsets, bounds, magic=MAGIC, version=1, code=8, count=None):
    count = len(lengths) if count is None else count
    head = struct.pack("<9sQBQQ", magic, version, code, count, len(bounds))
    arrays = (np.array(lengths, "<i4"), np.array(offsets, "<i8"), np.array(bounds, "<i8"))
    return head + b"".join(array.tobytes() for array in arrays)


def megatron(folder, documents=DOCUMENTS, **changes):
    """Two sequences a document, of tokens of two bytes, the later documents first in the data."""
    halves = [part for d in documents for part in (d[: len(d) // 2], d[len(d) // 2 :])]
    offsets, at, data = [0] * len(halves), 0, b""
    for number in reversed(range(len(halves))):
        offsets[number] = at
        data += np.array(halves[number], "<u2").tobytes()
        at = len(data)
    fields = {
        "lengths": [len(half) for half in halves], "offsets": offsets, "bounds": range(0, len(halves) + 1, 2),
    } | changes  # fmt: skip
    (folder / "d.idx").write_bytes(index(**fields))
    (folder / "d.bin").write_bytes(data)
    return folder / "d.idx"


def config(*paths, **changes):
    names = tuple(map(str, paths))
    return replace(DataConfig(source="tokens", files=names, eos=EOS, seq_len=8, batch_size=6), **changes)


@pytest.mark.parametrize("write", [parquet, arrow, lambda f: arrow(f, stream=True), megatron])
def test_every_form_gives_the_same_documents(tmp_path, write):
    path = write(tmp_path)
    opened = MegatronFile(path) if path.suffix == ".idx" else ColumnFile(path)
    assert opened.lengths.tolist() == [len(d) for d in DOCUMENTS]
    assert [opened.document(n).tolist() for n in (8, 0, 9, 5)] == [DOCUMENTS[n] for n in (8, 0, 9, 5)]


def test_sequences_are_the_documents_in_their_order(tmp_path):
    source = TokenSource(config(parquet(tmp_path), shuffle=False), 100)
    stream = [token for d in DOCUMENTS if d for token in (*d, EOS)] * 3
    for number in (0, 1, 7, 12, 3):
        assert source.sequence(number).tolist() == stream[number * 8 : number * 8 + 9], number


def test_each_epoch_has_every_document_once(tmp_path):
    source = TokenSource(config(arrow(tmp_path), seq_len=2), 100)
    whole = sum(len(d) + 1 for d in DOCUMENTS if d)
    read = [int(token) for n in range(whole) for token in source.sequence(n)[:2]]
    epochs = [read[:whole], read[whole:]]
    documents = [sorted(part.split() for part in " ".join(map(str, e)).split(str(EOS))) for e in epochs]
    assert epochs[0] != epochs[1]
    assert documents[0] == documents[1]
    assert len(documents[0]) == 9 + 1, "and what follows the last end: nothing"


def test_ranks_share_out_the_sequences_and_documents_mask(tmp_path):
    data = config(megatron(tmp_path))
    whole = torch.cat([b.tokens for b in Loader(data, 100, 1, 0).step(2)])
    parts = torch.cat([b.tokens for dp in range(3) for b in Loader(data, 100, 3, dp).step(2)])
    assert torch.equal(whole, parts)
    batch = Loader(data, 100, 1, 0).step(0)[0]
    ends = (batch.tokens == EOS).long()
    assert torch.equal(batch.documents, ends.cumsum(1) - ends)
    assert bool((batch.targets[ends.bool()] == IGNORED).all())


LIES = {
    "magic": ({"magic": b"MMIDIDX\x00\x01"}, "not a Megatron index"),
    "version": ({"version": 2}, "not a Megatron index"),
    "type": ({"code": 7}, "type 7, which is not a whole number"),
    "count": ({"count": 1 << 61}, "take"),
    "more sequences": ({"count": 21}, "take"),
    "negative length": ({"lengths": [-1] * 20}, "longer than"),
    "long sequence": ({"lengths": [1 << 30] * 20}, "longer than"),
    "offset before": ({"offsets": [-2] * 20}, "outside"),
    "offset behind": ({"offsets": [1 << 62] * 20}, "outside"),
    "bounds fall": ({"bounds": [0, 4, 2, 20]}, "do not cut"),
    "bounds beyond": ({"bounds": [0, 1 << 40]}, "do not cut"),
    "no bounds": ({"bounds": []}, "do not cut"),
    "bounds begin late": ({"bounds": [1, 20]}, "do not cut"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_refused(tmp_path, lie):
    changes, said = LIES[lie]
    with pytest.raises(ConfigError, match=said):
        MegatronFile(megatron(tmp_path, **changes))


def test_an_index_of_any_bytes_is_refused_or_read(tmp_path):
    """Cut at every length, and with every byte changed: never another error, never a read outside."""
    whole = megatron(tmp_path).read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[:n] for n in range(0, len(whole), 7)]
    changed = ((at, bytes([int(rng.integers(256))])) for at in range(0, len(whole), 2))
    damaged += [whole[:at] + byte + whole[at + 1 :] for at, byte in changed]
    for raw in damaged:
        (tmp_path / "d.idx").write_bytes(raw)
        try:
            opened = MegatronFile(tmp_path / "d.idx")
        except ConfigError:
            continue
        for number in range(len(opened.lengths)):
            assert len(opened.document(number)) == opened.lengths[number]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda f: parquet(f, kind=pa.list_(pa.float32())), "not lists of whole numbers"),
        (lambda f: parquet(f, name="text"), "has no column input_ids or tokens, but text"),
        (lambda f: parquet(f, [[1], None]), "rows without a list"),
        (lambda f: f / "none.parquet", "none.parquet"),
        (lambda f: f / "none.bin", "no such file"),
        (lambda f: f / "d.txt", "of no known form"),
        (lambda f: f, "holds no data set"),
        (lambda f: parquet(f, [[1, 2]]), "3 tokens do not fill a sequence of 8"),
    ],
)  # fmt: skip
def test_what_is_no_data_set_is_refused(tmp_path, make, said):
    with pytest.raises(ConfigError, match=said):
        TokenSource(config(make(tmp_path)), 100)


def test_damaged_columns_are_refused(tmp_path):
    for path in (parquet(tmp_path), arrow(tmp_path)):
        whole = path.read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], b"\0" * len(whole)):
            path.write_bytes(damaged)
            with pytest.raises(ConfigError, match=r"data\.files: "):
                ColumnFile(path)


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path):
    source = TokenSource(config(parquet(tmp_path, [[1, 500] * 8])), 100)
    with pytest.raises(ConfigError, match="holds token 500, the model has 100"):
        source.sequence(0)
    labels = TokenSource(config(parquet(tmp_path, [[1, -100] * 8])), 100)
    with pytest.raises(ConfigError, match="holds -100, which is no token"):
        labels.sequence(0)
    with pytest.raises(ConfigError, match=r"data\.eos: 99 is no token of 99"):
        TokenSource(config(parquet(tmp_path)), 99)


def job(path, **tables):
    data = {"source": "tokens", "files": [str(path)], "eos": EOS, "seq_len": 8, "batch_size": 6}
    return load(
        None,
        {
            "mesh": {"dp": 3}, "data": data, "numerics": {"policy": "fp32"}, "run": {"steps": 4},
            "model": {"layers": 1, "dim": 16, "heads": 2, "kv_heads": 2, "ffn_dim": 16, "vocab_size": 100},
            "checkpoint": {"every": 2},
        } | tables,
    )  # fmt: skip


@pytest.mark.slow
def test_a_resumed_run_goes_on_within_a_document(ranks, tmp_path):
    made = job(megatron(tmp_path))
    whole = ranks.run(workers.continued, 3, made, str(tmp_path / "a"), "", 4)
    half = str(tmp_path / "a" / "step-00000002")
    again = ranks.run(workers.continued, 3, made, str(tmp_path / "b"), half, 2)
    assert workers.assemble(again).keys() == workers.assemble(whole).keys()
    for name, values in workers.assemble(whole).items():
        assert np.array_equal(values, workers.assemble(again)[name]), name
    other = tmp_path / "other"
    other.mkdir()
    for changed, said in (
        (job(megatron(other, DOCUMENTS[1:])), "trained on another data set"),
        (replace(made, data=replace(made.data, batch_size=12)), "tokens were read, here"),
    ):
        with pytest.raises(AssertionError, match=said):
            ranks.run(workers.continued, 3, changed, str(tmp_path / "c"), half, 1)
