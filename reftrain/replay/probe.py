"""Where the replay shows its values as they arise: the baseline's counterpart of the trainer's hooks."""

from collections.abc import Sequence

import torch


class Probe:
    """Sees values and does nothing with them; `rows.RowProbe` writes them down."""

    def value(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Show a named value of every rank in lock step, once it is computed; gradients may be hooked."""

    def collective(
        self,
        axis: str,
        op: str,
        label: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """Show what every rank in lock step put into a collective and got from it."""
