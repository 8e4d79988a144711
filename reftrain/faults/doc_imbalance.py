"""The fault of unequal documents: one data-parallel replica's loader hands out longer ones.

`longer_documents` joins documents; this module chooses the sequences.
"""

import numpy as np

from reftrain.errors import ConfigError
from reftrain.faults.fault import Fault
from reftrain.faults.longer_documents import LongerDocuments
from reftrain.rank.hooks import RunContext
from reftrain.rank.trainer_view import TrainerView


class DocImbalance(Fault, kind="doc_imbalance"):
    """Gives one data-parallel replica longer documents: that of `rank`, else another one each step.

    Their last queries fall into the later chunk of the context rank of `rank`, else of one drawn for each sequence.
    """

    def strikes(self, context: RunContext) -> bool:
        """Return True: all ranks of a replica must load the same data."""
        del context
        return True

    def built(self, trainer: TrainerView) -> None:
        """Put longer documents between the source and the loader."""
        config, mesh = trainer.config, trainer.mesh
        if config.compute == "real" and trainer.kernel not in {"documents", "flex"}:
            raise ConfigError(
                "fault",
                f"doc_imbalance shows nothing where attention ({trainer.kernel}) costs every mask the same",
                "set numerics.attention = documents, or compute = emulated",
            )
        at = None if self.spec.rank is None else mesh.coords_of(self.spec.rank)
        per_replica = config.data.batch_size // mesh.dp.size

        def struck(number: int) -> float | None:
            step, within = divmod(number, config.data.batch_size)
            rng = np.random.default_rng((config.data.seed, step))
            replica = int(rng.integers(mesh.dp.size)) if at is None else at["dp"]
            if not self.spec.active(step) or within // per_replica != replica:
                return None
            drawn = np.random.default_rng((config.data.seed, number)).integers(mesh.cp.size)
            index = int(drawn) if at is None else at["cp"]
            return (2 * mesh.cp.size - index) / (2 * mesh.cp.size)

        loader = trainer.loader
        masked = config.numerics.document_mask
        loader.source = LongerDocuments(loader.source, self.spec.values["factor"], struck, masked=masked)
