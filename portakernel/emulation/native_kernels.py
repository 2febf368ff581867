"""Launches of HIP C++ kernels in the emulator: compiled as for a GPU that is not here, with line tables beside."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from portakernel.errors import ArgumentValueError
from portakernel.native.kernel import Kernel
from portakernel.native.module import layout_of
from portakernel.native.place import EMULATED
from portakernel.native.unit import build

if TYPE_CHECKING:
    from portakernel.emulation.session import Session

_FORMATS = {"int32": "<i", "uint32": "<I", "int64": "<q", "uint64": "<Q", "float32": "<f", "float64": "<d"}
# Which instruction comes from which line; the instructions are the same.
_LINES = "-gline-tables-only"


@contextmanager
def taking_native_launches(session: Session) -> Iterator[None]:
    """Within this context, launches of native kernels on CPU tensors go to ``session``."""

    def take(kernel: Kernel, grid: Sequence[int], block: Sequence[int], shared_bytes: int, args: Sequence[Any]) -> None:
        if len(args) != len(kernel.parameters):
            kinds = ", ".join(map(str, kernel.parameters))
            raise ArgumentValueError(
                f"kernel {kernel.name} of {kernel.unit.source.file} takes {len(kernel.parameters)} arguments "
                f"({kinds}); its launch gives {len(args)}"
            )
        unit, target = kernel.unit, session.target
        options = unit.for_target(target)
        options = replace(options, flags=(*options.flags, _LINES))
        code = build(unit.source, target, options, unit.names, form=unit.form)
        given = [
            arg if kind == "pointer" or isinstance(arg, bytes) else struct.pack(_FORMATS[str(kind)], arg)
            for kind, arg in zip(kernel.parameters, args, strict=True)
        ]
        facts = code.kernel(kernel.name)
        layout_of(facts, kernel.parameters)  # says what is declared otherwise than compiled
        label = f"{PurePath(unit.source.file).stem}.{kernel.name}"
        session.launch(label, code.code, facts.symbol, grid, block, given, dynamic_lds=shared_bytes)

    token = EMULATED.set((session.target, take))
    try:
        yield
    finally:
        EMULATED.reset(token)
