"""The modules of one data-parallel rank and micro-batch, run again on their recorded inputs."""
