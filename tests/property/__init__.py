"""Properties of the slow-rank answer: what must not change when a recording is told in another way."""
