"""Two captures beside each other: joined, judged and explained."""
