"""Machine code of the scanner: loaded, and called like a function."""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding as llvm

SYMBOL: Final = "tracekit_scan"
_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64
)
"""How numba's code is called: results and errors through pointers, then the arguments. It needs no lock of Python."""


def target() -> Any:
    """Return the machine for which code is made: this processor, with all that it can do."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


def processor() -> str:
    """Return what machine code of this process depends on: LLVM, the processor and its features."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.llvm_version_info} {llvm.get_default_triple()} {llvm.get_host_cpu_name()} {features}"


def loaded(code: bytes) -> Callable[[int], int]:
    """Return the scanner of an object file, a function from the address of a state to an Ending."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    function = _FUNCTION(engine.get_function_address(SYMBOL))

    def scan(state: int, _engine: Any = engine) -> int:
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        if function(ctypes.byref(result), ctypes.byref(error), state):
            raise RuntimeError("the compiled scanner failed")  # it raises nothing: this cannot be
        return result.value

    return scan
