"""What a run costs before it is run: replay of schedules, memory, planning, and traces of simulated jobs."""
