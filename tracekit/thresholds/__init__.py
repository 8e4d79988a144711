"""Every threshold of tracekit, named and with its reason, in one module for each room that reads it.

This package imports no other. A comparison elsewhere uses a name from here, never a bare number.
"""
