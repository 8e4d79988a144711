"""Answers as Markdown: the words of the text, shown as they stand, never more than a comment holds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.cli.program import Program
from tests.marks import quick_nth
from tracekit.report.markdown import escaped, fenced_markdown, indented_markdown, labelled_markdown
from tracekit.thresholds.report import MARKDOWN_CHARACTERS

READER = MarkdownIt("gfm-like", {"html": True, "linkify": False})
SAMPLES = "sample_traces"
NASTY = (
    "**a**",
    "<script>x</script>",
    "[a](http://x)",
    "![a](//x)",
    "# a",
    "- a",
    "`a`",
    "~~a~~",
    "a|b",
    "1. a",
)


@pytest.fixture
def tracekit(monkeypatch, capfd):
    return Program(monkeypatch, capfd)


def tokens(markdown):
    """All tokens of a page in reading order, those of a line among them."""
    for token in READER.parse(markdown):
        yield token
        yield from token.children or ()


def read(markdown):
    """Words that a reader of the page sees, without the spaces of no width."""
    shown = (t.content for t in tokens(markdown) if t.type in ("text", "text_special", "fence"))
    return "".join("".join(shown).replace("\u200b", "").split())


@pytest.mark.parametrize("arguments", quick_nth(2, [
    ("slowrank", "slow_compute"), ("slowrank", "healthy"), ("whatif", "slow_compute"), ("breakdown", "demo_slow_tp"),
    ("floor", "demo_slow_tp"), ("hang", "hang_host_stall"),
]))  # fmt: skip
@pytest.mark.slow
def test_words_are_those_of_the_text(tracekit, ingested, arguments, tmp_path):
    command, sample = arguments
    source = f"{SAMPLES}/{sample}" if command == "hang" else ingested(sample)
    done = tracekit(command, source, "--quiet", "--markdown", tmp_path / "answer.md")
    assert done.code == 0, done.err
    markdown = (tmp_path / "answer.md").read_text()
    seen, labels = read(markdown), set()
    for line in done.out.splitlines():
        label, _, text = line.strip().partition("  ")
        assert "".join(text.split()) in seen
        labels.add("".join(label.split()))
    assert all(label in seen for label in labels)


@given(st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=20)), min_size=1, max_size=4))
def test_nothing_in_a_name_is_obeyed(names):
    text = "x " + " ".join(names)
    page = labelled_markdown([("TITLE", text), ("why", text), ("why", text), ("next", text)])
    kinds = {t.type for t in tokens(page)}
    assert kinds <= {
        *(
            "paragraph_open",
            "paragraph_close",
            "inline",
            "text",
            "text_special",
            "strong_open",
            "strong_close",
        ),
        *("bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"),
    }
    assert "".join(text.split()).replace("\u200b", "").replace("\0", "\ufffd") in read(page)


@pytest.mark.parametrize("text", ["@team", "http://evil.example", "www.evil.example", "#12"])
def test_pages_call_nobody_and_link_nothing(text):
    shown = escaped(f"see {text}")
    assert text not in shown
    assert not re.search(r"[@#]\w|://|www\.", shown)


def test_a_fence_is_longer_than_what_it_holds():
    page = indented_markdown("hang: a\n  rank 1 here\n    ````\n    <b>x\n  end\n")
    fence = next(t for t in tokens(page) if t.type == "fence")
    assert fence.content.split() == ["````", "<b>x"]
    assert not [t for t in tokens(page) if t.type.startswith("html")]


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=9), min_size=1, max_size=5))
def test_fenced_lines_stand_as_they_are(lines):
    page = fenced_markdown("\n".join(["HEAD", *(f"  {line}" for line in lines)]))
    fence = next(t for t in tokens(page) if t.type == "fence")
    assert fence.content.splitlines() == [f"  {line}" for line in lines]


@pytest.mark.slow
def test_long_answers_are_cut_and_say_so():
    page = labelled_markdown([("TITLE", "a"), *(("rejected", "word " * 10_000) for _ in range(5_000))])
    assert len(page) < MARKDOWN_CHARACTERS + 100
    assert re.search(r"… and \d+ more lines$", page.strip())


def test_only_one_answer_is_printed(tracekit):
    done = tracekit("slowrank", f"{SAMPLES}/healthy", "--json", "-", "--markdown", "-")
    assert done.code == 2
    assert "name a file for one of them" in done.err
