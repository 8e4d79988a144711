"""Properties of the slow-rank answer: it must not change when the same run is recorded in another way."""
