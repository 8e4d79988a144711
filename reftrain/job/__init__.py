"""A whole job: its ranks started, trained, watched and ended; the jobs that repeat it for comparison."""
