"""Images as patches, each a function of seed and number of its sequence only, so that no mesh can change them."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from reftrain.config.encoder import EncoderConfig

_IMAGES = 1
"""Separates the random numbers of a sequence's image from those of its documents."""


def patches(config: EncoderConfig, seed: int, numbers: Iterable[int]) -> npt.NDArray[np.float32]:
    """Return the patches of one image a sequence, (sequences, tokens, patch), standard normal."""
    shape = config.tokens, config.patch
    found = [np.random.default_rng((seed, number, _IMAGES)).standard_normal(shape) for number in numbers]
    return np.stack(found).astype(np.float32)
