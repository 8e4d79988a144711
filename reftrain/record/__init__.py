"""Evidence of a run: annotated profiler traces, flight-recorder dumps, metrics and the manifest.

Independent of the trainer: any program on torch.distributed can be recorded with it.
"""
