"""What no argument of a trace says: peers of messages, groups of collectives and the mesh, each found by the others."""
