"""Kernels that stand in the graph of ``torch.compile`` by themselves: as torch operators, or as Triton kernels.

AOTAutograd traces what Dynamo recorded once more, with functional tensors. There such a kernel runs on them instead of
leaving a node of its op: its operators and launches are recorded, and Inductor fuses them with what stands around, or
launches them. Each of these nodes, and of those of calls, says in its ``meta["custom"]["portakernel"]`` whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import traceback

from portakernel.errors import CompiledGraphError, PortakernelError
from portakernel.registry.kernel import Kernel
from portakernel.tensors.diversion import IN_GRAPHS, diverted
from portakernel.tensors.torch_internals import is_exporting
from portakernel.torch_bridge.autocast import outside_autocast

# What the nodes of an op carry, and under which key.
CUSTOM_META = "portakernel"


def is_compiling(given: Sequence[Tensor]) -> bool:
    """Whether these tensors stand for those of a graph that is being compiled; an exported one is not, until it is."""
    return not is_exporting() and any(isinstance(tensor, FunctionalTensor) for tensor in given)


def is_looked_ahead(given: Sequence[Tensor]) -> bool:
    """Whether these tensors are those by which Dynamo learns what comes out of a node: the graph is made later."""
    return TracingContext.try_get() is not None and not any(isinstance(tensor, FunctionalTensor) for tensor in given)


def recorded(kernel: Kernel, run: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What ``run``, which launches the kernel, makes of the traced tensors: nodes of the graph.

    Raises:
        CannotRun: as for any call.
        CompiledGraphError: the kernel cannot be traced.
    """
    with outside_autocast(arguments), diverted(_record):
        try:
            returned = run(*arguments)
        except PortakernelError:  # CannotRun among them
            raise
        except Exception as error:
            name = kernel.name
            text = (
                f"{kernel.op}: {name} cannot stand in the graph as {kernel.in_graphs.form}, at node {_node()}: {error}"
            )
            advice = f"portakernel.set_policy(compiled='call') has it called, deny={name!r} leaves it out"
            raise CompiledGraphError(f"{text}. {advice}") from error
    return tuple(map(_own, returned)) if isinstance(returned, (tuple, list)) else _own(returned)


def _record(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
    """A launch as a node of the graph: Inductor compiles the kernel, and launches it."""
    wrapped: Any = torch.library.wrap_triton(kernel)
    meta = {**meta, **getattr(kernel, IN_GRAPHS, {})}
    meta.pop("enable_fp_fusion", None)  # Inductor has no place for it, and contracts
    # Inductor has a place for every parameter (torch 2.11): what has a default is given it
    left = kernel.params[len(args) :]
    defaults = {one.name: one.default for one in left if one.has_default and one.name not in meta}
    wrapped[(*grid, 1)](*args, **defaults, **meta)


def _own(result: Tensor | None) -> Tensor | None:
    """A result as every op's: contiguous."""
    return None if result is None else result.contiguous()


def _node() -> str:
    """The name of the node of Dynamo's graph that is being traced."""
    meta = traceback.get_current_meta()
    nodes = meta.get("from_node") or ()
    return str(nodes[-1].name) if nodes else "(unknown)"
