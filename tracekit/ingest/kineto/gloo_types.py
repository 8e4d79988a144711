"""What the types of inputs say, which `record_shapes=True` records: the element type of a collective on Gloo.

Such a collective has no other sign of it. Kineto writes the types of C++, all other traces those of torch.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import from_numpy, from_strings, null_as, to_numpy
from tracekit.schema import DICT

TYPES_KEY: Final = "Input type"
GLOO: Final = "gloo:"
GLOO_MARK: Final = b'"gloo:'
_NAMES: Final = {
    "bool": "Bool", "unsigned char": "Byte", "signed char": "Char", "short": "Short", "short int": "Short",
    "int": "Int", "long": "Long", "long int": "Long", "long long": "Long", "c10::Half": "Half",
    "c10::BFloat16": "BFloat16", "float": "Float", "double": "Double",
}  # fmt: skip
"""Types of torch by the name of their C++ type, as GCC and Clang spell it."""


def type_of(name: str | None, types: Any) -> str | None:
    """Return the element type of a call on Gloo with inputs of these `types`; None where not known."""
    if not (name or "").startswith(GLOO) or not isinstance(types, list) or not types:
        return None
    first = types[0]
    alike = isinstance(first, str) and all(kind == first for kind in types)
    return _NAMES.get(first) if alike else None


def gloo_rows(names: pa.Array, types: pa.Array) -> list[int]:
    """Return the rows of the calls on Gloo with types; `names` is a dictionary of text."""
    if not pa.types.is_dictionary(names.type) or types.null_count == len(types):
        return []
    of_gloo = [(name or "").startswith(GLOO) for name in names.dictionary.to_pylist()]
    asked = np.array([*of_gloo, False])[null_as(names.indices, -1)]
    return np.flatnonzero(asked & to_numpy(types.is_valid())).tolist()


def with_types(dtypes: pa.Array, names: pa.Array, types: Mapping[int, Any]) -> pa.Array:
    """Return `dtypes`, where null completed by the `types` of inputs, by row; dictionaries of text."""
    found = {row: kind for row, said in types.items() if (kind := type_of(names[row].as_py(), said))}
    if not found:
        return dtypes
    there = np.zeros(len(dtypes), bool)
    there[list(found)] = True
    said = pc.replace_with_mask(
        pa.nulls(len(dtypes), pa.string()),
        from_numpy(there),
        from_strings([found[row] for row in sorted(found)]),
    )
    return pc.coalesce(dtypes.cast(pa.string()), said).dictionary_encode().cast(DICT)
