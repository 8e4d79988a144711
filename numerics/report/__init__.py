"""Findings as text, JSON and one HTML page; nothing is computed here."""
