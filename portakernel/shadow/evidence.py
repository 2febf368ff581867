"""Wrong calls on disk: their tensors, in a folder that somebody has named, a bounded number of files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import torch

from portakernel.host.distributions import version
from portakernel.shadow.sample import Sample

# Files in one folder, whichever process wrote them.
MOST_FILES = 16
_ENDING = ".shadow.pt"


def keep(sample: Sample, detail: str, folder: Path) -> Path | None:
    """The file in which a wrong call is now; None where the folder has ``MOST_FILES`` already.

    ``torch.load`` reads it: ``op``, ``kernel``, ``detail``, ``request``, ``tensors`` by name, ``values`` by name,
    ``results``, and versions. Nobody but this user may read it, or enter the folder, where that is made here.

    Raises:
        OSError: it cannot be written; nothing is left of the attempt.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sum(1 for _ in folder.glob(f"*{_ENDING}")) >= MOST_FILES:
        return None
    candidate, contract = sample.candidate, sample.caller.contract
    whole = {
        "op": candidate.op,
        "kernel": candidate.kernel,
        "detail": detail,
        "request": str(candidate.placement.decision.request),
        "tensors": {
            name: None if tensor is None else tensor.cpu()
            for name, tensor in zip(contract.names, sample.tensors, strict=True)
        },
        "values": dict(zip((parameter.name for parameter in contract.parameters), sample.values, strict=True)),
        "results": [result.cpu() if isinstance(result, torch.Tensor) else result for result in sample.results],
        "versions": {"portakernel": version("portakernel"), "torch": version("torch")},
    }
    descriptor, unfinished = tempfile.mkstemp(prefix=f"{candidate.kernel}.", suffix=".unfinished", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            torch.save(whole, file)
        path = Path(unfinished).with_suffix(_ENDING)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    return path
