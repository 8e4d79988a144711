"""Every threshold of tracekit, named and with its reason; each section belongs to the room it names.

This file stands below everything that reads it. A comparison elsewhere uses a name from here, never a bare number.
"""

# --- files, dumps, ingest: bounds on input that nobody vouches for ---

# --- tables: what counts as waiting, as one step, as one message ---

# --- slowrank: who is named ---

# --- hang: who is named ---

# --- report: how much is shown ---
