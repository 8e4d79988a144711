"""Whatever is left of a job: files recognised, the analyses that they support, and one answer with each kind's say."""
