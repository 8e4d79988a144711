"""A short turn of tests.hang.fuzz: whatever a dump holds, an answer or a refusal in words comes out."""

from tests.hang.fuzz import fuzz


def test_damaged_dumps_get_an_answer_or_a_refusal():
    counts = fuzz(200, seed=7)
    assert sum(counts[k] for k in ("bytes", "structure", "cut", "json", "code")) == 200
    assert counts["answered"] >= 3
    assert min(counts[k] for k in ("bytes", "structure", "cut", "json", "code")) >= 10
