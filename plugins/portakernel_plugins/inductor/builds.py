"""Each op's compiled graphs: made in ``build``, looked up on a call, which compiles nothing."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection, Request, contract, warmup_call_on
from portakernel_plugins.inductor import cache_folder
from portakernel_plugins.inductor.formula import (
    Formula,
    Free,
    Part,
    flattened,
    part_of,
    torch_dtype,
    unflattened,
)

if TYPE_CHECKING:
    from portakernel_plugins.inductor.graph import Graph


class Op:
    """One op's graphs, and the functions that a manifest entry names."""

    def __init__(self, name: str) -> None:
        self.contract = contract(name)
        self.defaults = tuple((parameter.name, parameter.default) for parameter in self.contract.parameters)
        # calls name features too
        self.keyword = frozenset(tensor.name for tensor in self.contract.tensors if tensor.keyword or tensor.feature)
        self._formulas: dict[tuple[Any, ...], tuple[Formula, tuple[tuple[int, ...], ...]]] = {}
        self._graphs: dict[tuple[Any, ...], list[Graph]] = {}
        self._lock = threading.Lock()

    # --- calls -----------------------------------------------------------------------------------------------------

    def forward(self, *positional: Tensor | None, out: Any = None, save: bool = False, **named: Any) -> Any:
        """The outputs, with ``save`` then what backward needs; into ``out`` where it is given."""
        # a feature that is not claimed is neutral, and not passed
        tensors = self._in_order(positional, named) if self.keyword else positional
        for tensor in tensors:
            if tensor is not None and not tensor.is_contiguous():
                raise CannotRun(Rejection(ReasonCode.LAYOUT, "takes contiguous tensors"))
        values = tuple([named.get(name, default) for name, default in self.defaults])
        found = self._run("saving" if save else "forward", tensors, values)
        if out is not None:
            from portakernel.authoring.tensors import copy_into

            for target, result in zip(out if isinstance(out, (tuple, list)) else (out,), found, strict=True):
                copy_into(target, result)
            return out
        return found[0] if len(found) == 1 else found

    def backward(self, *tensors: Tensor | None, needs: Sequence[bool], **named: Any) -> tuple[Tensor | None, ...]:
        """The gradients that ``needs`` asks for; all are computed."""
        values = tuple([named.get(name, default) for name, default in self.defaults])
        given = [None if tensor is None else tensor.contiguous() for tensor in tensors]
        if any(tensor is None for tensor in given[: self._grads]):
            given = self._completed(values, given)
        found = self._run("backward", given, values)
        return tuple(gradient if needed else None for gradient, needed in zip(found, needs, strict=True))

    def _in_order(self, positional: Sequence[Tensor | None], named: Mapping[str, Any]) -> tuple[Tensor | None, ...]:
        rest = iter(positional)
        return tuple([named.get(name) if name in self.keyword else next(rest) for name in self.contract.names])

    @property
    def _grads(self) -> int:
        return sum(output.differentiable for output in self.contract.outputs)

    def _run(self, part: Part, tensors: Sequence[Tensor | None], values: tuple[Any, ...]) -> tuple[Any, ...]:
        formula, places = self._formula(part, values)
        leading = formula.leading(tensors)
        free = formula.free(tensors, leading)
        graphs = self._graphs.get(_key(part, values, places, tensors, free), ())
        graph = next((graph for graph in graphs if graph.admits(free)), None)
        if graph is None:
            raise CannotRun(self._unbuilt(part, tensors, values))
        found = graph(
            [
                flattened(tensor, shape, free)
                for tensor, shape in zip(tensors, formula.shapes, strict=True)
                if tensor is not None
            ]
        )
        return tuple(
            None if result is None else unflattened(result, shape, leading, free)
            for result, shape in zip(found, formula.results, strict=True)
        )

    def _formula(self, part: Part, values: tuple[Any, ...]) -> tuple[Formula, tuple[tuple[int, ...], ...]]:
        known = self._formulas.get((part, values))
        if known is None:
            formula = Formula.of(
                self.contract, part, dict(zip((name for name, _ in self.defaults), values, strict=True))
            )
            known = self._formulas[part, values] = (formula, formula.static_places())
        return known

    def _unbuilt(self, part: Part, tensors: Sequence[Tensor | None], values: tuple[Any, ...]) -> Rejection:
        rows = [name for name in self.contract.dims if name not in self.contract.fixed_dims]
        given = {tensor.name for tensor in self.contract.tensors if not tensor.optional}
        if part != "backward":  # which is given other tensors
            given |= {name for name, tensor in zip(self.contract.names, tensors, strict=True) if tensor is not None}
        named = {name: value for (name, _), value in zip(self.defaults, values, strict=True)}
        text = f"is not built for these sizes; {warmup_call_on(self.contract, given, named)} builds it"
        return Rejection(ReasonCode.NEEDS_BUILD, text, rows[0] if rows else None)

    def _completed(self, values: tuple[Any, ...], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Zeros in the place of gradients of outputs that nothing depends on, in the form that was built for.

        Raises:
            CannotRun: nothing was built for the others, or several things.
        """
        formula, places = self._formula("backward", values)
        leading = formula.leading(tensors)
        wanted = _key("backward", values, places, tensors, formula.free(tensors, leading))
        absent = [place for place in range(self._grads) if tensors[place] is None]
        forms = len(wanted) - len(tensors)
        open_places = {forms + place for place in absent}
        fitting = {
            tuple(key[place] for place in sorted(open_places))
            for key in list(self._graphs)
            if len(key) == len(wanted)
            and all(place in open_places or key[place] == part for place, part in enumerate(wanted))
        }
        if len(fitting) != 1:
            raise CannotRun(self._unbuilt("backward", tensors, values))
        device = next(tensor.device for tensor in tensors if tensor is not None)
        completed = list(tensors)
        for place, (dtype, *sizes) in zip(absent, fitting.pop(), strict=True):
            completed[place] = torch.zeros((*(leading or ()), *sizes), dtype=dtype, device=device)
        return completed

    # --- builds ----------------------------------------------------------------------------------------------------

    def build(self, request: Request, tensors: Sequence[Tensor | None], values: Sequence[Any]) -> None:
        """Compiles what calls like this one need, unless that was done, and runs it once: launchers are tuned then.

        Raises:
            CannotRun: Inductor cannot compile it, or has no directory for what it compiles.
        """
        part, given = part_of(self.contract, request.phase), tuple(values)
        formula, places = self._formula(part, given)
        example = self._example(formula, request, tensors)
        free = formula.free(example, formula.leading(example))
        key = _key(part, given, places, example, free)
        with self._lock:
            if any(graph.admits(free) for graph in self._graphs.get(key, ())):
                return
            if (rejection := cache_folder.settle()) is not None:
                raise CannotRun(rejection)
            graph = self._compiled(formula, request, example, free)
            present = zip(example, formula.shapes, strict=True)
            with _on(next(tensor.device for tensor in example if tensor is not None)), torch.no_grad():
                graph([flattened(tensor, shape, free) for tensor, shape in present if tensor is not None])
            self._graphs.setdefault(key, []).append(graph)

    def _example(self, formula: Formula, request: Request, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Tensors like those of the call: for backward zeros, in the form of gradients and of what forward keeps."""
        if formula.part != "backward":
            return tensors
        given = dict(zip(self.contract.names, tensors, strict=True))
        leading = next(
            tuple(given[t.name].shape[: given[t.name].dim() - len(t.fixed)])  # type: ignore[union-attr]
            for t in self.contract.at(formula.values).tensors
            if given[t.name] is not None and (t.leading or not formula.product_names)
        )
        leading = leading if formula.product_names else ()
        device = next(tensor.device for tensor in tensors if tensor is not None)
        found: list[Tensor | None] = []
        for name, shape, source in zip(formula.names, formula.shapes, formula.dtype_names(), strict=True):
            if name in given or shape is None:
                found.append(given.get(name))
            else:
                dtype = torch_dtype(request.dtypes.get(source or "", source or ""))
                found.append(torch.zeros(formula.form(shape, request.dims, leading), dtype=dtype, device=device))
        return found

    def _compiled(self, formula: Formula, request: Request, example: Sequence[Tensor | None], free: Free) -> Graph:
        def computed(*present: Tensor) -> Sequence[Tensor | None]:
            given = iter(present)
            return formula([None if tensor is None else next(given) for tensor in example])

        def forms(sizes: Sequence[Any]) -> list[tuple[tuple[Any, ...], torch.dtype]]:
            return [
                (formula.form(shape or (), request.dims, sizes), tensor.dtype)
                for tensor, shape in zip(example, formula.shapes, strict=True)
                if tensor is not None
            ]

        device = next(tensor.device for tensor in example if tensor is not None)
        with _on(device), warnings.catch_warnings():
            # what torch's modules warn of among themselves is not the caller's to mend
            warnings.simplefilter("ignore")
            # takes seconds, which nobody pays who builds nothing
            from portakernel_plugins.inductor.graph import CannotCompile, compile_graph

            try:
                return compile_graph(computed, free, forms, device)
            except CannotCompile as error:
                text = f"Inductor cannot compile the reference: {error}"
                raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, text)) from error


def _key(
    part: Part,
    values: tuple[Any, ...],
    places: Sequence[tuple[int, ...]],
    tensors: Sequence[Tensor | None],
    free: Free,
) -> tuple[Any, ...]:
    """What a graph is compiled for, free sizes excepted."""
    forms = [
        None if tensor is None else (tensor.dtype, *[tensor.shape[place] for place in static])
        for tensor, static in zip(tensors, places, strict=True)
    ]
    return (part, values, len(free), next(t.device for t in tensors if t is not None), *forms)


def _on(device: torch.device) -> Any:
    """``device`` as the current one, to which kernels are launched and for which they are compiled."""
    return torch.get_device_module(device).device(device) if device.type in ("cuda", "xpu") else nullcontext()
