"""Seconds and bytes of a rank's work on described hardware.

- `hardware.load_hardware` reads a machine: peaks, links, host, and the shares that kernels reach.
- `job.Job` is a training job as plain data; `job.job_of_run` makes it from a configuration.
- `cost_model.CostModel` gives the kernels and collectives of a layer, a stage, a message, an optimiser step (seconds).
- `memory.MemoryModel` gives the memory of every pipeline rank at the largest moment of a step, by kind (bytes).
- `calibrate` measures this machine and writes a hardware file.

Errors are `ConfigError` for a hardware file or job that contradicts itself, `MachineError` for a failed measurement.
"""
