"""Findings as text, JSON and pages; nothing is computed here."""
