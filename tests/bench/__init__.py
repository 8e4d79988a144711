"""Measurements beside other tools, run by `make bench`; nothing here is a test."""
