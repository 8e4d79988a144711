"""Real runs with a planted fault: `python -m tests.interventions` prints promised and measured gains."""
