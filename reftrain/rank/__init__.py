"""One rank of a job: its place in the mesh, its communication, and the hooks that watch it."""
