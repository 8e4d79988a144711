"""Tokenised data sets that are refused, and what the refusals advise."""

from pathlib import Path

from reftrain.config.run import DataConfig
from reftrain.data.batches import Loader
from reftrain.data.tokens import TokenSource, open_files
from reftrain.train.checkpoint import _check_same_data
from tests.advice.of_config import configured
from tests.advice.register import calls, case
from tests.reftrain.test_tokens import DOCUMENTS, EOS, arrow, config, megatron, parquet

VOCABULARY = 100
"""Tokens of a model, the end of a document among them."""

calls(
    "source = tokens names no file",
    configured,
    "data.source=tokens",
    'data.source=tokens data.files=["corpus.parquet"]',
)


def read(data: DataConfig, vocabulary: int = VOCABULARY) -> object:
    """The first sequence of a data set."""
    return TokenSource(data, vocabulary).sequence(0)


@case("data.files: {} {}; name data.column, or another file")
def _(folder, _patch):
    path = parquet(folder, name="text_ids")
    return lambda: read(config(path)), lambda: (
        read(config(path, column="text_ids")),
        read(config(arrow(folder))),
    )


@case("name NAME.bin beside its NAME.idx")
def _(folder, _patch):
    data = megatron(folder).with_suffix(".bin")
    alone = data.rename(folder / "alone.bin")
    return lambda: read(config(alone)), lambda: read(config(alone.rename(data)))


@case("{} holds no data set; name a folder of")
def _(folder, _patch):
    corpus = folder / "corpus"
    corpus.mkdir()
    parquet(corpus)
    (folder / "notes.txt").write_text("mine")
    return lambda: open_files((str(folder),), ""), lambda: open_files((str(corpus),), "")


@case("is of no known form; give .parquet, .arrow or .bin with .idx")
def _(folder, _patch):
    (folder / "d.jsonl").write_text("")
    return lambda: read(config(folder / "d.jsonl")), lambda: [
        read(config(path)) for path in (parquet(folder), arrow(folder), megatron(folder))
    ]


@case("data.eos: {} is no token of {}")
def _(folder, _patch):
    path = parquet(folder)
    return lambda: read(config(path), EOS), lambda: read(config(path), EOS + 1)


@case("{} documents are too many; name fewer files")
def _(folder, patch):
    patch.setattr("reftrain.data.tokens.MOST_DOCUMENTS", len(DOCUMENTS))
    one, other = parquet(folder), arrow(folder)
    return lambda: read(config(one, other)), lambda: read(config(one))


@case("{} tokens do not fill a sequence of {}; name more files")
def _(folder, _patch):
    whole = sum(len(document) + 1 for document in DOCUMENTS if document)
    one, other = parquet(folder), arrow(folder)
    return lambda: read(config(one, seq_len=whole)), lambda: read(config(one, other, seq_len=whole))


@case("{} holds {}, which is no token")
def _(folder, _patch):
    labels = [[1, -100, *document] for document in DOCUMENTS]
    path = parquet(folder, labels, name="labels")
    return lambda: read(config(path, column="labels")), lambda: read(config(parquet(folder)))


@case("{} holds token {}, the model has {}")
def _(folder, _patch):
    path = parquet(folder, [[1, 500] * 8])
    return lambda: read(config(path)), lambda: read(config(path), 501)


def resumed(data: DataConfig, trained: DataConfig) -> None:
    """Go on after two steps on one data set from the checkpoint of another."""
    stored, own = (Loader(config, VOCABULARY, 1, 0).state(2) for config in (trained, data))
    _check_same_data(Path("step-00000002"), stored, own)


@case("was trained on another data set")
def _(folder, _patch):
    one, other = parquet(folder), arrow(folder, DOCUMENTS[::-1])
    trained = config(one, other)
    return lambda: resumed(config(other, one), trained), lambda: resumed(config(one, other), trained)


@case("tokens were read, here {} would have been")
def _(folder, _patch):
    trained = config(parquet(folder))
    return lambda: resumed(config(folder / "d.parquet", batch_size=12), trained), lambda: resumed(
        trained, trained
    )
