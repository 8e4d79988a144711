"""The what-if analysis of operation tables, in which every dependency between operations is known."""
