"""Commands: each validates, calls one library function and renders its result."""
