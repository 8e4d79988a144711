"""A training job simulated on described hardware, with the traces and dumps that the real one would leave.

- `setup.Setup` holds the inputs; `runner.simulate` gives a `simulation.Simulation`: the times of every operation.
- `compile` turns a schedule into programs, `engine` and `communication` run them, `faults` and `jitter` disturb them.
- `run_folder.outcome_of` gives the figures (`summary`); `run_folder.write_folder` writes the run folder:
  `kineto_writer`, `flight_writer`, `timeline`.

Times are ns from the job's begin, and infinite for an operation that never happens; arrays of one pipeline rank have
the shape (dp, cp, tp), flattened. Jobs that cannot be simulated raise `ConfigError` or `ScheduleError`, a folder that
cannot be written `MachineError`.
"""
