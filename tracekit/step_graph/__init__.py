"""The step as a model: what ranks post, need and wait for, replayed with other durations."""
