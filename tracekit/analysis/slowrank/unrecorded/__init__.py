"""Ranks without a trace, and the time that recorded ranks may wait for them."""
