"""Every threshold of tracekit, named and with its reason, in one module for each room that reads it.

This package stands below all others. A comparison elsewhere uses a name from here, never a bare number.
"""
