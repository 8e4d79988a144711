"""Where steps begin and end, and what each rank did in them."""
