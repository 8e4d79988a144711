"""How long ranks waited, moved data and stood still: what is measured of a run before anything is judged."""
