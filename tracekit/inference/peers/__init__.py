"""Peers of messages that name none, by what the rank groups, the order and the ends of kernels say."""
