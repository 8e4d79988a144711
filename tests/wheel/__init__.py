"""The wheel tried in fresh environments, beside what tests in this one can show."""
