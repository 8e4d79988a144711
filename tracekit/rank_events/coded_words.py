"""Columns of words as numbers.

A number takes 4 bytes an entry, while text of fixed width takes the length of its longest word.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]


class Words(tuple[str, ...]):  # noqa: SLOT001 - a tuple that also keeps its numbers
    """A column of words that `numbered` looks through once."""

    coded: tuple[list[str], Codes] | None = None

    def __new__(cls, column: Iterable[str]) -> Self:
        """Return `column`, itself where it is one."""
        return column if isinstance(column, cls) else super().__new__(cls, column)

    @classmethod
    def of(cls, texts: Sequence[str], place: npt.NDArray[np.integer[Any]]) -> "Words":
        """Return the column in which entry i is `texts[place[i]]`; the same text may stand at several places."""
        used = np.bincount(place, minlength=len(texts)) > 0
        words, order = numbered([texts[i] for i in np.flatnonzero(used).tolist()])
        column = cls(np.array(texts, object)[place].tolist())
        column.coded = words, order[(np.cumsum(used) - 1)[place]]
        return column


class Column:
    """A column of words that holds each of them once: `words`, and the index of each entry's word among them.

    It is indexed and compared as an array of words: by entry, which the types of `object` do not allow for.
    """

    def __init__(self, words: Sequence[str | None], codes: Codes) -> None:
        self.words, self.codes = np.array(words, object), codes

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Any:
        """Return the word of one row, or an array of the words of several."""
        return self.words[self.codes[rows]]

    def __eq__(self, word: object) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        """Whether each entry is `word`."""
        return self.among((word,))

    def __ne__(self, word: object) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        """Whether each entry is another word."""
        return ~self.among((word,))

    def __hash__(self) -> int:
        """Raise TypeError, as an array does: equality is by entry."""
        raise TypeError("a column of words has no hash")

    def among(self, wanted: Collection[object]) -> npt.NDArray[np.bool_]:
        """Whether the word of each entry is one of the `wanted`."""
        return np.array([word in wanted for word in self.words.tolist()], bool)[self.codes]

    def kinds(self) -> list[str]:
        """Return the distinct words that some entry has, sorted."""
        return sorted(set(self.words[np.bincount(self.codes, minlength=len(self.words)) > 0].tolist()))


def numbered(column: npt.NDArray[Any] | Iterable[object]) -> tuple[list[str], Codes]:
    """Return (the distinct words, sorted; the index of each entry's word among them).

    `pyarrow.array(column).dictionary_encode()` takes as long for tens of words, and imports pandas (0.3 s).
    """
    if isinstance(column, Words) and column.coded is not None:
        return column.coded
    entries = column.tolist() if isinstance(column, np.ndarray) else list(column)
    seen = {word: i for i, word in enumerate(dict.fromkeys(entries))}
    code = np.fromiter(map(seen.__getitem__, entries), np.int32, len(entries))
    words = [str(word) for word in seen]
    place = np.empty(len(words), np.int32)
    place[np.argsort(np.array(words, object), kind="stable")] = np.arange(len(words))
    found = sorted(words), place[code]
    if isinstance(column, Words):
        column.coded = found
    return found


def joined(columns: Iterable[Iterable[str]]) -> tuple[list[str], Codes]:
    """Return (the distinct words of several columns, sorted; the index of each entry's word, column after column)."""
    coded = [numbered(column) for column in columns]
    place = {word: i for i, word in enumerate(sorted({word for words, _ in coded for word in words}))}
    codes = [np.array([place[word] for word in words], np.int32)[code] for words, code in coded]
    return list(place), np.concatenate([np.zeros(0, np.int32), *codes])


def among(column: npt.NDArray[Any] | Iterable[object], wanted: Collection[str]) -> npt.NDArray[np.bool_]:
    """Whether the word of each entry is one of the `wanted`."""
    words, code = numbered(column)
    return np.array([word in wanted for word in words], bool)[code]
