"""A disk of few bytes, to be filled."""

import os
import subprocess
from contextlib import contextmanager

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")


@contextmanager
def small_disk(folder, size):
    """An empty disk of `size` mounted at `folder`; skips where nothing may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
