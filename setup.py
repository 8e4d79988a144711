"""Packages, found by themselves; everything else stands in pyproject.toml.

The folder cli/ is installed as `tracekit_cli`, which a list of folders to search cannot say.
"""

from setuptools import find_packages, setup

LIBRARIES = ("tracekit", "numerics", "reftrain")

setup(
    packages=[
        *find_packages(include=[f"{name}{below}" for name in LIBRARIES for below in ("", ".*")]),
        "tracekit_cli",
        *(f"tracekit_cli.{name}" for name in find_packages("cli")),
    ],
    package_dir={"tracekit_cli": "cli"},
)
