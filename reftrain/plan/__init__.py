"""Mesh, schedule and memory of a job, chosen before it runs.

- `projection.project` gives the seconds of a step of a job, its bubble and its exposed communication.
- `choose.Planner` projects every mesh of a number of devices, or rejects it with a reason (`meshes`, `lower_bounds`).
- `attention_pairs` counts the attention of packed documents by context rank.
- `plan_report` and `memory_report` give the answers as JSON, text and SVG.

Times are seconds, sizes bytes, shares fractions of 1. A workload that fits on no mesh raises `ConfigError`.
"""
