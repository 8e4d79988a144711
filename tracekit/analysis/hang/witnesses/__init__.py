"""What evidence beside dumps adds to the answer: deaths, ranks that never joined, stacks, doubts about logs and RAS."""
