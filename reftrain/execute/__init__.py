"""What drives a model through a step: the schedule, FSDP, the sums of gradients."""
