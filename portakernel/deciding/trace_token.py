"""The token of all that decisions depend on: a compiled graph, perhaps kept on disk, holds for one token."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

from portakernel.contracts import shipped
from portakernel.deciding.kernel_argument import TOKEN_MARK
from portakernel.deciding.readiness import required
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Registry
from portakernel.tensors import torch_build
from portakernel.text.spelling import spelled

_REFERENCES = Path(__file__).parent.parent / "references"


def make_token(registry: Registry, wishes: Iterable[object]) -> str:
    """The token of the kernels that there are, this hardware, the installed torch, and what the process wishes.

    Devices are no part of it: they would have to be probed, and torch keeps graphs by device itself.
    """
    kernels = [kernel for _, kernel in sorted(registry.kernels.items())]
    claims = [(_claims(kernel), [version for _, _, version in required(kernel)]) for kernel in kernels]
    dissolved = [kernel for kernel in kernels if kernel.in_graphs.form != "call"]
    sources = sorted({folder for kernel in dissolved if (folder := _folder(kernel, registry)) is not None})
    facts = (*wishes, platform.machine(), torch_build.installed(), claims, [_digest(folder) for folder in sources])
    return TOKEN_MARK + hashlib.sha256(spelled(facts).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=4096)
def _claims(kernel: Kernel) -> str:
    """What of a kernel decides whether, how early and in which form it is chosen."""
    return spelled((kernel.name, kernel.package, kernel.variants, kernel.priority, kernel.in_graphs, kernel.disabled))


def _folder(kernel: Kernel, registry: Registry) -> Path | None:
    """The folder with the sources of a kernel that graphs hold what it is made of."""
    if kernel.package is not None:
        return kernel.package.folder
    op = shipped().get(kernel.op)
    if op is None:
        return _REFERENCES
    plugin = registry.manager.plugins.get(op.plugin)
    return plugin[0].folder if plugin is not None else None


@functools.cache
def _digest(folder: Path) -> str:
    """A digest of the folder's sources: another edition of a kernel is another graph."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return digest.hexdigest()
