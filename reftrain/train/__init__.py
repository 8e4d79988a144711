"""A training job from launch to checkpoint."""
