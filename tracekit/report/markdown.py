"""Answers as Markdown for issues and chats: the words of the text, bounded, with all text of a trace escaped.

Only a bold headline, a list and fenced blocks are written: GitHub, GitLab, Slack and Mattermost all show these.
"""

import re
from collections.abc import Iterator, Sequence

from tracekit.report.shared_text import Line
from tracekit.thresholds.report import MARKDOWN_CHARACTERS, MARKDOWN_ITEM_CHARACTERS

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#])")
_LINKED = re.compile(r"[@#]|:(?=//)|w(?=ww\.)", re.IGNORECASE)
_UNSEEN = "\u200b"
"""A space of no width: after `@`, `#` and in an address it keeps a page from notifying a person or making a link."""
_INDENTED = "    "


def labelled_markdown(lines: Sequence[Line]) -> str:
    """Return the Markdown of lines of `label  text`: the first in bold, the others a list with an item a label."""
    (title, headline), *others = lines
    items: list[tuple[str, list[str]]] = []
    for label, text in others:
        if items and label in ("", items[-1][0]):
            items[-1][1].append(text)
        else:
            items.append((label, [text]))
    parts = [f"**{escaped(title)}** {escaped(headline)}\n"]
    for label, texts in items:
        if len(texts) == 1:
            parts.append(f"- **{escaped(label)}** {escaped(texts[0])}")
        else:
            parts.append(f"- **{escaped(label)}**")
            parts.extend(f"  - {escaped(text)}" for text in texts)
    return _bounded(parts)


def indented_markdown(text: str) -> str:
    """Return the Markdown of lines of text: the first in bold, lines indented by four spaces fenced, others a list."""
    first, *others = text.splitlines()
    parts = [f"**{escaped(first)}**\n"]
    block: list[str] = []
    for line in [*others, ""]:
        if line.startswith(_INDENTED):
            block.append(_cut(line.strip()))
            continue
        if block:
            parts.extend(_fenced(block))
            block = []
        if line.strip():
            parts.append(f"- {escaped(line.strip())}")
    return _bounded(parts)


def fenced_markdown(text: str) -> str:
    """Return lines of text as Markdown: the first in bold, the others unchanged in one fenced block."""
    first, *others = text.splitlines()
    shown, room = [], MARKDOWN_CHARACTERS
    for number, line in enumerate(map(_cut, others)):
        room -= len(line) + 1
        if room < 0:
            shown.append(f"… and {len(others) - number} more lines")
            break
        shown.append(line)
    return "\n".join([f"**{escaped(first)}**\n", *_fence(shown)]) + "\n"


def escaped(text: str) -> str:
    """Return text that Markdown shows unchanged: no emphasis, HTML, link or mention; cut if it is very long."""
    shown = _SPECIAL.sub(r"\\\1", _cut(" ".join(text.split())))
    return _LINKED.sub(lambda begin: begin[0] + _UNSEEN, shown)


def _cut(text: str) -> str:
    if len(text) <= MARKDOWN_ITEM_CHARACTERS:
        return text
    return text[: MARKDOWN_ITEM_CHARACTERS - 1] + "…"


def _fenced(block: Sequence[str]) -> Iterator[str]:
    """The block of code inside a list item."""
    yield "\n".join(f"  {line}" for line in _fence(block))


def _fence(block: Sequence[str]) -> tuple[str, ...]:
    """The lines of a block between fences longer than every run of backticks in it."""
    longest = max((len(run) for line in block for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return (fence, *block, fence)


def _bounded(parts: Sequence[str]) -> str:
    """The parts as lines, cut so that a comment can hold them."""
    kept, room = [], MARKDOWN_CHARACTERS
    for number, part in enumerate(parts):
        room -= len(part) + 1
        if room < 0:
            kept.append(f"- … and {len(parts) - number} more lines")
            break
        kept.append(part)
    return "\n".join(kept) + "\n"
