"""The process in which NVRTC or HIPRTC compiles: they may abort, and take their process with them.

Run as a script, without portakernel: it reads what to do from its standard input, as JSON, and writes machine code,
assembly and symbols into a folder and what the compiler said to stdout. Without a file it prints the version.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main() -> int:
    """Does what the standard input says; the exit status."""
    asked = json.loads(sys.stdin.buffer.read())
    library = ctypes.CDLL(asked["library"])

    def call(name: str, *arguments: Any) -> int:
        return int(getattr(library, asked["prefix"] + name)(*arguments))

    major, minor = ctypes.c_int(), ctypes.c_int()
    call("Version", ctypes.byref(major), ctypes.byref(minor))
    if "file" not in asked:
        print("version", major.value, minor.value)
        return 0
    program = ctypes.c_void_p()
    source = Path(asked["file"]).read_bytes()
    name = asked["file"].encode()
    if status := call("CreateProgram", ctypes.byref(program), source, name, 0, None, None):
        print(f"CreateProgram failed with {status}")
        return 1
    for wanted in asked["names"]:
        # also an extern "C" kernel's name is an expression
        call("AddNameExpression", program, wanted.encode())
    options = [option.encode() for option in asked["options"]]
    status = call("CompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
    print(_read(call, "ProgramLog", program).rstrip(b"\0").decode(errors="replace"))
    if status:
        return 1
    folder = Path(asked["folder"])
    if asked["prefix"] == "nvrtc":
        (folder / "kernel.ptx").write_bytes(_read(call, "PTX", program).rstrip(b"\0"))
    (folder / "names.json").write_text(json.dumps(_lowered(call, program, asked["names"])), encoding="utf-8")
    (folder / "code").write_bytes(_read(call, "CUBIN" if asked["prefix"] == "nvrtc" else "Code", program))
    return 0


def _read(call: Any, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    if call(f"Get{what}Size", program, ctypes.byref(size)):
        return b""
    content = ctypes.create_string_buffer(max(1, size.value))
    return content.raw[: size.value] if not call(f"Get{what}", program, content) else b""


def _lowered(call: Any, program: ctypes.c_void_p, names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        symbol = ctypes.c_char_p()
        if not call("GetLoweredName", program, name.encode(), ctypes.byref(symbol)) and symbol.value:
            found[name] = symbol.value.decode()
    return found


if __name__ == "__main__":
    sys.exit(main())
