"""The dense 16-bit peak of devices, by the name that a driver gives them; the data sheets of their makers.

Traces name their devices, so that a roofline needs no option.
"""

import re
from collections.abc import Mapping
from typing import Final

_PEAK_TFLOPS: Final[Mapping[str, float]] = {
    "P100 SXM2": 21.2,
    "P100": 18.7,
    "V100 SXM2": 125.0,
    "V100 PCIE": 112.0,
    "T4": 65.0,
    "A30": 165.0,
    "A40": 149.7,
    "A100": 312.0,
    "A800": 312.0,
    "L4": 121.0,
    "L40S": 362.0,
    "H20": 148.0,
    "H100 PCIE": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800 PCIE": 756.0,
    "H800": 989.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "GH200": 989.0,
    "B200": 2250.0,
    "GB200": 2500.0,
    "MI210": 181.0,
    "MI250": 181.0,
    "MI250X": 191.5,
    "MI300X": 1307.0,
    "MI325X": 1307.0,
}
"""TFLOP/s without sparsity by words of a device's name; the first whose words the name holds. Without a form factor it
is that of SXM. Of MI250 and MI250X a device is one of two dies."""
_PART: Final = "MIG"
"""The word that names a part of a device, which has only a part of the peak."""


def peak_tflops(name: str) -> float | None:
    """Return the dense 16-bit peak of the device of this name, TFLOP/s; None where it is not known."""
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    if _PART in words:
        return None
    return next((peak for known, peak in _PEAK_TFLOPS.items() if words.issuperset(known.split())), None)
