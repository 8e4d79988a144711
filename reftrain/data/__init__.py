"""Packed documents, the same whatever the mesh."""
