"""Compiles a CUDA source to PTX with NVRTC: nvrtc.py LIBRARY SOURCE OPTION... writes the PTX to standard output.

NVRTC is a library and no program, and to load a library takes `unsafe` in Rust, which the chores do without.
"""

import ctypes
import pathlib
import sys


def compile_source(library: str, source: pathlib.Path, options: list[str]) -> bytes:
    """Returns the PTX, and exits with the compiler's messages where there is none."""
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def check(status: int) -> None:
        if status != 0:
            sys.exit(f"NVRTC: {nvrtc.nvrtcGetErrorString(status).decode()}")

    program = ctypes.c_void_p()
    name = source.name.encode()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), name, 0, None, None))
    encoded = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetProgramLog(program, log))
    sys.stderr.write(log.value.decode())
    check(status)
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx.value


if __name__ == "__main__":
    sys.stdout.buffer.write(compile_source(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]))
