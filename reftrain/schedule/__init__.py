"""Pipeline schedules as data: one table of actions a rank drives the trainer, the planner and the simulator.

- `registry`: every scheme with its properties; `generators.generate` makes the table of a `spec.ScheduleSpec`.
- `check.check` proves that a table can run; `lower.lower` adds messages, gradient reductions and replica sums.
- `evaluation.evaluate` gives exact times, bubbles and memory peaks (`timing`, `memory_peaks`).
- `text_form`, `csv_form`, `svg`: a table as text, as torch's CSV, as a picture.

Sizes are counts; times are exact fractions of the unit in which `costs.Costs` is given. Every refusal is a
`ScheduleError` that names the size, the problem and the remedy.
"""
