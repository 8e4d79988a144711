"""The configuration of a run: its tables, its checks, the file and the presets."""
