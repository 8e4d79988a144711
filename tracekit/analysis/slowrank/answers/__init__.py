"""From hypotheses and gaps to one answer: named, healthy, imbalance or open."""
