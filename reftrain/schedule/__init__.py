"""Pipeline schedules as data: one table of actions a rank drives the executor and whatever predicts it."""
