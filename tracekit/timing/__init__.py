"""Measures how long ranks waited, moved data and idled, before anything is judged."""
