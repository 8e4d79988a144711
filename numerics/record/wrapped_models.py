"""Models as FSDP2, DDP, compilation and checkpointing wrap them: clean names, first outputs, data-parallel meshes.

And whether their forward runs within a backward, as checkpointing does.
"""

import re
from collections.abc import Mapping
from typing import Final

import torch

from numerics.record.parallel_layout import DATA

_WRAPPERS: Final = re.compile(
    r"(^|\.)(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?=\.|$)"
)
"""Parts of a dotted name that wrappers add."""


def clean_name(name: str) -> str:
    """Return the name of a module or parameter without the parts that wrappers add."""
    return _WRAPPERS.sub("", name).lstrip(".")


def module_of(parameter: str) -> str:
    """Return the name of the module that holds a parameter."""
    return parameter.rpartition(".")[0]


def spans_data(value: torch.Tensor) -> bool:
    """Return whether a DTensor lies on a mesh with a data-parallel dimension."""
    mesh = getattr(value, "device_mesh", None)
    names = getattr(mesh, "mesh_dim_names", None) or ()
    return any(str(name).startswith(DATA) for name in names)


def first_tensor(output: object) -> torch.Tensor | None:
    """Return the first tensor of a module's output: a tensor, or a mapping or sequence of them; None without one."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((item for item in output if isinstance(item, torch.Tensor)), None)
    return None


def in_backward() -> bool:
    """Return whether autograd runs a backward in this thread."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - there is no public way to ask
