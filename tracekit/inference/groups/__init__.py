"""Groups of collectives that name none, by streams, places in the step and the ranks that leave together."""
