"""Compiles the scanner to machine code of this processor: `python -m tracekit.ingest.kineto.compiled.build FILE`.

A process of its own imports numba, which takes seconds and a hundred megabytes; reading processes load only its result.
"""

import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import njit

from tracekit.ingest.kineto.compiled.events import scan
from tracekit.ingest.kineto.compiled.machine import SYMBOL, target


def machine_code() -> bytes:
    """Return the scanner as an object file; RuntimeError where it would call anything outside itself."""
    signed: Any = njit(
        "int64(int64)", nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    scanner: Any = scan
    made: Any = signed(scanner.py_func)
    result = made.overloads[made.signatures[0]]
    module = llvm.parse_assembly(result.library.get_llvm_str())
    foreign = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if foreign:
        raise RuntimeError(f"the compiled scanner calls {', '.join(foreign)}")
    module.get_function(result.fndesc.llvm_func_name).name = SYMBOL
    code: bytes = target().emit_object(module)
    return code


def main() -> None:
    """Write the machine code to the file named."""
    Path(sys.argv[1]).write_bytes(machine_code())


if __name__ == "__main__":
    main()
