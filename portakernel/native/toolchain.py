"""Which compiler serves a target here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.native import clang, nvcc, rtc
from portakernel.native.code_object import Form
from portakernel.native.compiler import Compiler
from portakernel.native.options import CompilerName, Options
from portakernel.words.target import Target


@dataclass(frozen=True, slots=True)
class _Known:
    """A compiler as it is looked for."""

    vendor: str
    forms: tuple[Form, ...]
    find: Callable[[], Compiler | Rejection]


_COMPILERS: Mapping[CompilerName, _Known] = {
    "nvrtc": _Known("nvidia", ("code object",), rtc.find_nvrtc),
    "nvcc": _Known("nvidia", ("code object", "library"), nvcc.find),
    "clang": _Known("amd", ("code object",), clang.find),
    "hiprtc": _Known("amd", ("code object",), rtc.find_hiprtc),
}

# What decides which compilers are found; asked anew when one of them changes.
_VARIABLES = ("PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "LD_LIBRARY_PATH")


def compiler_for(
    target: Target,
    options: Options = Options(),  # noqa: B008 - frozen
    form: Form = "code object",
) -> Compiler | Rejection:
    """The compiler that would be used, with ``name``, ``version`` and ``path``; or why there is none.

    A plugin's ``ready`` asks it: ``isinstance(found, Rejection)``.
    """
    able = [name for name, known in _COMPILERS.items() if known.vendor == target.vendor and form in known.forms]
    names = [name for name in options.compilers if name in able] if options.compilers else able
    reasons: list[Rejection] = []
    for name in names:
        try:
            return _found(name, *(os.environ.get(variable, "") for variable in _VARIABLES))
        except CannotRun as declared:
            reasons.append(declared.rejection)
    if not names:
        asked = f"{form} for {target}"
        text = f"no compiler makes a {asked} of {', '.join(options.compilers) or 'those known here'}"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text, "target")
    # a compiler that lacks its headers is nearer than one that is not there
    nearest = min(reasons, key=lambda reason: reason.code is ReasonCode.MISSING_TOOLCHAIN)
    return replace(nearest, text="; ".join(reason.text for reason in reasons))


@functools.lru_cache(maxsize=64)
def _found(name: CompilerName, *environment: str) -> Compiler:
    """The compiler, kept; that there is none is not, for one may be installed."""
    del environment  # it is part of what the answer is kept for
    found = _COMPILERS[name].find()
    if isinstance(found, Rejection):
        raise CannotRun(found)
    return found
