"""From what was measured of a case to its answer: one list of rules, and one of what may speak against their answer."""
