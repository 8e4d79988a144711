"""Bytes of files that others wrote, in; typed tables and a record of every repair, out."""
