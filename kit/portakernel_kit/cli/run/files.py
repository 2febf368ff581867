"""Arguments of a call out of files: ``--input ARG=FILE``."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from portakernel.contract import Contract
from portakernel.errors import ArgumentValueError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

_FORM = "write ARG=FILE.npy or ARG=FILE.pt, such as x=x.npy"


def read_inputs(op: Contract, texts: Sequence[str]) -> dict[str, Tensor]:
    """The tensors that files hold, by argument; nothing in them is executed.

    Raises:
        ArgumentValueError: a text is not of that form, or a file holds no one tensor.
        UnknownNameError: the op has no such argument.
    """
    found: dict[str, Tensor] = {}
    for text in texts:
        name, equals, file = (part.strip() for part in text.partition("="))
        if not equals or not file:
            raise ArgumentValueError(f"--input {text!r} names no file; {_FORM}")
        if name not in op.names:
            raise UnknownNameError("tensor argument", name, op.names, where=op.op)
        if name in found:
            raise ArgumentValueError(f"--input gives {name} twice")
        found[name] = _read(Path(file))
    return found


def _read(path: Path) -> Tensor:
    import numpy as np
    import torch

    if path.suffix not in (".npy", ".pt"):
        raise ArgumentValueError(f"--input: {path} is neither a .npy nor a .pt file; {_FORM}")
    try:
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path, allow_pickle=False))
        held = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, TypeError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ArgumentValueError(
            f"--input: {path} cannot be read: {reason}; numpy.save and torch.save write such files"
        ) from error
    if not isinstance(held, torch.Tensor):
        raise ArgumentValueError(f"--input: {path} holds a {type(held).__name__}; save one tensor in a file")
    return held.detach()
