"""Kernels' names as people write them, and as compilers do: instances of templates are asked for by the former."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re
from collections.abc import Callable, Sequence

_TEMPLATE = re.compile(r"[\w:]+<.*>")
# Types of 16 bits, which C++ runtimes demangle since 2023 or not at all: decimal types, which no kernel has and all of
# them know, stand in for them.
_STAND_INS = {"DF16b": ("Df", "decimal32", "__bf16"), "DF16_": ("De", "decimal128", "_Float16")}


def is_instance(name: str) -> bool:
    """Whether a name is an instance of a template: ``rms_norm<float, 8>``."""
    return _TEMPLATE.fullmatch(name) is not None


def instances(names: Sequence[str]) -> str:
    """C++ that makes the compiler instantiate the templates among ``names``: to take their address is to use them.

    It is compiled behind the source. The function is the host's, and in device code nothing is left of it.
    """
    wanted = [name for name in names if is_instance(name)]
    if not wanted:
        return ""
    uses = " ".join(f"(void)&{name};" for name in wanted)
    return f'\n#line 1 "names"\nvoid portakernel_instances() {{ {uses} }}\n'


def find_symbol(name: str, symbols: Sequence[str]) -> str | None:
    """The symbol among a code object's kernels that ``name`` means."""
    if name in symbols:
        return name
    wanted = _plain(name)
    fitting = [symbol for symbol in symbols if _plain(_without_arguments(demangled(symbol))) == wanted]
    return fitting[0] if len(fitting) == 1 else None


def demangled(symbol: str) -> str:
    """A symbol as C++ would write it; itself where it is no C++ symbol or nothing can tell."""
    if not symbol.startswith("_Z"):
        return symbol
    for mangled, (stand_in, _, _) in _STAND_INS.items():
        symbol = symbol.replace(mangled, stand_in)
    found = _demangler()(symbol)
    for _, demangled_as, meant in _STAND_INS.values():
        found = re.sub(rf"\b{demangled_as}\b", meant, found)
    return found


def _without_arguments(text: str) -> str:
    """``void scale<float, 4>(float*, long)`` without its type and its arguments."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if depth == 0 and text[place] == "(":
            text = text[:place]
            break
    return text.removeprefix("void ")


def _plain(name: str) -> str:
    # 8u and 8 are one number, and blanks mean nothing but between words
    name = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", name)
    return re.sub(r"\s+(?!\w)|(?<!\w)\s+", "", name).removeprefix("::")


@functools.cache
def _demangler() -> Callable[[str], str]:
    """The C++ runtime's own, which torch has loaded anyway."""
    for library in ("libstdc++.so.6", "libc++abi.so.1", ctypes.util.find_library("c++abi") or ""):
        try:
            demangle = ctypes.CDLL(library or None).__cxa_demangle
            free = ctypes.CDLL(None).free
        except (OSError, AttributeError):
            continue
        demangle.restype = ctypes.c_void_p
        free.argtypes = [ctypes.c_void_p]

        def name_of(symbol: str, demangle: object = demangle, free: object = free) -> str:
            status = ctypes.c_int()
            address = demangle(symbol.encode(), None, None, ctypes.byref(status))  # type: ignore[operator]
            if not address:
                return symbol
            found = ctypes.string_at(address).decode(errors="replace")
            free(address)  # type: ignore[operator]
            return found

        return name_of
    return lambda symbol: symbol
