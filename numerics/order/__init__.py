"""The order of every sum of a run: as data, compared, and replayed."""
