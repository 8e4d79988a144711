"""Every threshold of tracekit, named and with its reason, in one module for each room that reads it.

This package is below all others in the import order. A comparison elsewhere uses a name from here, never a bare number.
"""
