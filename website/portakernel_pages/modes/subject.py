"""An op on one of its contract's cases, called as a model calls it, and what the results have to be."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from portakernel import ops, runtime
from portakernel.calling.arguments import dtype_name
from portakernel.calling.caller import OpCaller
from portakernel.calling.devices import find_device
from portakernel.claims.request import Phase
from portakernel.contract import Contract, TensorArgument
from portakernel.contract.case import Case
from portakernel.contracts import contract, reference_module
from portakernel.deciding.decision import Decision
from portakernel.words.dtypes import FLOAT64
from portakernel_kit.conformance.claims import accepted, elements
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.inputs import Inputs, case_shape, draw_inputs, draw_values, generator, is_present
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.truth import exact
from portakernel_kit.conformance.venue import Venue

SEED = 20261121


class Subject:
    """One op on one case's tensors; ``draw`` tells apart several drawn for the same case."""

    def __init__(self, op: str, case: Case | None = None, *, draw: int = 0, device: str = "cpu") -> None:
        self.contract: Contract = contract(op)
        self.case = case if case is not None else smallest_case(self.contract)
        self.caller: OpCaller = runtime.caller(op)
        self.draw, self.device = draw, device
        dtypes = first_dtypes(self.contract, self.case)
        source = generator(SEED, op, self.case.name, draw)
        self.inputs: Inputs = draw_inputs(self.contract, self.case, dtypes, device, source)

    @classmethod
    def of(cls, like: Subject, tensors: Sequence[Tensor | None]) -> Subject:
        """The same op and parameters on other tensors of the same shapes."""
        made = cls.__new__(cls)
        made.contract, made.case, made.caller = like.contract, like.case, like.caller
        made.draw, made.device = like.draw, like.device
        given = like.inputs
        made.inputs = Inputs(given.contract, tuple(tensors), given.parameters, given.dims, given.leading)
        return made

    def in_float64(self) -> Subject:
        """The same numbers in float64, where the op's arguments may be."""
        dtypes = {self.contract.in_float64: FLOAT64}
        for tensor in self.inputs.contract.tensors:
            if FLOAT64 in (dtypes.get(entry, entry) for entry in self.inputs.contract.accepted_dtypes(tensor.name, {})):
                dtypes[tensor.name] = FLOAT64
        pairs = zip(self.contract.names, self.tensors, strict=True)
        return Subject.of(self, [None if t is None else exact(t) if name in dtypes else t for name, t in pairs])

    # --- calling ---------------------------------------------------------------------------------------------------

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The arguments that are tensors, None where an optional one is not passed."""
        return self.inputs.tensors

    @functools.cached_property
    def floats(self) -> tuple[int, ...]:
        """The places of the tensors that may require gradients and have one: none where the op has no gradient."""
        floating = [i for i, t in enumerate(self.tensors) if t is not None and t.dtype.is_floating_point]
        if self.contract.gradient == "none":
            return tuple(floating)
        if any(self._at(place).dtype.itemsize == 1 for place in floating):  # what is quantised has no gradient
            return ()
        truth = self.trial.truth.gradients(self.cotangents)
        return tuple(place for place in floating if truth[place] is not None)

    def call(self, *tensors: Tensor | None, kernel: str | None = None) -> Any:
        """The public op on ``tensors`` and the case's parameters; what it writes into are copies, and returned."""
        pairs = zip(self.contract.tensors, tensors, strict=True)
        given = [t.clone() if argument.mutated and t is not None else t for argument, t in pairs]
        positional, keywords = self.inputs.keywords(given)
        found = getattr(ops, self.contract.op)(*positional, **keywords, kernel=kernel)
        if not self.contract.mutated:
            return found
        pairs = zip(self.contract.tensors, given, strict=True)
        return tuple(t for argument, t in pairs if argument.mutated and t is not None)

    def filled(self, floats: Sequence[Tensor]) -> list[Tensor | None]:
        """All arguments, with ``floats`` in the places of those that may require gradients."""
        tensors = list(self.tensors)
        for place, tensor in zip(self.floats, floats, strict=True):
            tensors[place] = tensor
        return tensors

    def of_floats(self, *floats: Tensor) -> Any:
        """The op as a function of the tensors that may require gradients alone."""
        return self.call(*self.filled(floats))

    def leaves(self) -> list[Tensor]:
        """The tensors that may require gradients, as leaves that do."""
        return [self._at(place).detach().requires_grad_() for place in self.floats]

    def plain(self) -> list[Tensor]:
        """The tensors that may require gradients, which do not."""
        return [self._at(place) for place in self.floats]

    def _at(self, place: int) -> Tensor:
        tensor = self.tensors[place]
        assert tensor is not None
        return tensor

    def differentiable(self, found: Any) -> list[Tensor]:
        """Those of the results that derivatives are asked of."""
        results = found if isinstance(found, tuple) else (found,)
        return [result for result, asked in zip(results, self._asked, strict=True) if asked]

    @functools.cached_property
    def _asked(self) -> list[bool]:
        """Which results derivatives are asked of: of an op without any the last of floats; not all can be summed."""
        outputs = self.inputs.results
        if self.contract.gradient == "none":
            floats = [output for output in outputs if self.inputs.dtype(output).is_floating_point]
            return [output is floats[-1] for output in outputs]
        return [output.differentiable for output in outputs]

    @functools.cached_property
    def cotangents(self) -> tuple[Tensor, ...]:
        """Gradients of the results, drawn."""
        return self.drawn_cotangents("cotangents")

    def drawn_cotangents(self, label: str) -> tuple[Tensor, ...]:
        """Gradients of the results, drawn for ``label``."""
        source, found = generator(SEED, self.contract.op, self.case.name, label), []
        for output, asked in zip(self.inputs.results, self._asked, strict=True):
            if asked:
                shape, dtype = self.inputs.form(output)
                values = draw_values(shape, "normal", "float32", source)
                found.append(values.to(self.device, dtype))
        return tuple(found)

    def tangents(self, label: str) -> list[Tensor]:
        """Directions in which the tensors that may require gradients move, drawn for ``label``."""
        source = generator(SEED, self.contract.op, self.case.name, "tangents", label)
        drawn = [draw_values(self._at(place).shape, "normal", "float32", source) for place in self.floats]
        return [values.to(self.device, self._at(place).dtype) for place, values in zip(self.floats, drawn, strict=True)]

    def weighted(self, found: Any, *cotangents: Sequence[Tensor]) -> Tensor:
        """The sum of the results' elements times ``cotangents``, of each that is given: losses with known gradients."""
        results = [result.float() for result in self.differentiable(found)]
        losses = [
            functools.reduce(torch.add, [(r * w.float()).sum() for r, w in zip(results, weights, strict=True)])
            for weights in cotangents or (self.cotangents,)
        ]
        return torch.stack(losses) if len(losses) > 1 else losses[0]

    def loss(self, *floats: Any) -> Tensor:
        """The loss of the op as a function of the tensors that may require gradients, for ``cotangents``."""
        return self.weighted(self.of_floats(*floats), self.cotangents)

    # --- the truth -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def trial(self) -> Trial:
        """The kernel that serves the call, and the truth about it."""
        chosen = self.chosen(Phase.INFERENCE)
        device = find_device(self.caller.dispatcher.registry, torch.device(self.device))
        kernel = self.caller.dispatcher.registry.kernels[chosen]
        venue = Venue(self.device, (device.target,), device)
        return Trial(self.caller, kernel, venue, self.inputs, frozenset())

    def chosen(self, phase: Phase) -> str:
        """The full name of the kernel that serves ``phase`` of the call."""
        decision = self.caller.explain(self.tensors, self.inputs.values, phase)
        if decision.chosen is None:
            raise decision.error()
        return decision.chosen.name

    def explain_compiled(self, phase: Phase = Phase.INFERENCE) -> Decision:
        """The decision for the call in a compiled graph."""
        return self.caller.explain(self.tensors, self.inputs.values, phase, compiled=True)

    def wrong_results(self, found: Any) -> list[str]:
        """What is wrong with the results."""
        return self.trial.compare_results(found if isinstance(found, tuple) else (found,))

    def wrong_gradients(self, found: Iterable[Tensor | None], cotangents: Sequence[Tensor] | None = None) -> list[str]:
        """What is wrong with the gradients of the tensors in ``floats`` for those of the results."""
        truth = self.trial.truth.gradients(cotangents or self.cotangents)
        backward = Backward(self.trial, generator(SEED))
        problems: list[str] = []
        for place, gradient in zip(self.floats, found, strict=True):
            want, tensor, name = truth[place], self._at(place), backward.names[place]
            assert want is not None
            if self.contract.gradient == "identity":
                exactly = {dtype_name(tensor.dtype): 0.0}
                problems += self.trial.compare(
                    gradient, name, tensor.shape, tensor.dtype, want.value, exactly, want.magnitude
                )
            else:
                problems += backward.hold(gradient, name, tensor, want)
        return problems

    # --- the formula -----------------------------------------------------------------------------------------------

    @property
    def reference(self) -> Any:
        """The module that holds the op's formulas."""
        return importlib.import_module(reference_module(self.contract.op))

    def exact_floats(self) -> list[Tensor]:
        """The tensors that may require gradients, in float64 on the CPU."""
        return [exact(self._at(place)) for place in self.floats]

    def formula(self, *floats: Tensor) -> list[Tensor]:
        """The reference's differentiable results on these tensors."""
        tensors = [None if t is None else exact(t) if t.dtype.is_floating_point else t.cpu() for t in self.tensors]
        for place, tensor in zip(self.floats, floats, strict=True):
            tensors[place] = tensor
        positional, keywords = self.inputs.keywords(tensors)
        return self.differentiable(self.reference.forward(*positional, **keywords))


def far(name: str, found: Tensor, want: Tensor, relative: float) -> list[str]:
    """What is wrong with numbers that are as good as float32 or the difference quotient behind ``want`` can be."""
    got, wanted = found.detach().double().cpu(), want.detach().double().cpu()
    if got.shape != wanted.shape:
        return [f"{name} has shape {tuple(got.shape)}, not {tuple(wanted.shape)}"]
    apart = float((got - wanted).abs().max()) if got.numel() else 0.0
    allowed = relative * max(1.0, float(wanted.abs().max()) if wanted.numel() else 0.0)
    if math.isfinite(apart) and apart <= allowed:
        return []
    return [f"{name} is up to {apart:.3g} away from the formula in float64; {allowed:.3g} is allowed"]


def first_dtypes(of: Contract, case: Case) -> dict[str, str]:
    """The first dtypes that the op accepts for the case's arguments: float32 wherever it may be."""
    dtypes = {p.name: case.parameters.get(p.name, p.default) for p in of.parameters if p.kind == "dtype"}
    made = of.at(of.values({**dtypes, **case.parameters}))
    for argument in made.tensors:
        if is_present(argument, case):
            dtypes[argument.name] = made.accepted_dtypes(argument.name, dtypes)[0]
    assert accepted(of, case, dtypes)
    return dtypes


def smallest_case(of: Contract) -> Case:
    """The contract's smallest case without a trivial size: ordinary numbers, with gradients, nothing empty or given."""

    def ordinary(case: Case) -> bool:
        made = of.at(of.values(case.parameters))
        shapes = [case_shape(t, case) for t in made.tensors if is_present(t, case)]
        drawn = [s for t, s in zip((t for t in made.tensors if is_present(t, case)), shapes, strict=True) if _plain(t)]
        leads = any(t.leading for t in made.tensors)
        plain = case.values == "normal" and not case.layouts and not case.given
        return (
            plain
            and (case.backward or of.gradient == "none")
            and bool(case.leading or not leads)
            and all(size > 0 for shape in shapes for size in shape)
            and all(size > 1 for shape in drawn for size in shape)
        )

    def bits(case: Case) -> int:
        """How many of the arguments pack numbers, or exponents, that torch does not compute with."""
        return sum(dtype in ("float4_e2m1fn_x2", "float8_e8m0fnu") for dtype in first_dtypes(of, case).values())

    return min(filter(ordinary, of.cases), key=lambda case: (bits(case), elements(of, case)))


def _plain(argument: TensorArgument) -> bool:
    """Whether a size of one is trivial in the argument, as it is not for the scale of a whole tensor."""
    return argument.draw.kind != "scale"


@contextmanager
def undisturbed(caller: OpCaller) -> Iterator[None]:
    """Inside, the process's own layer of policy may be changed; afterwards it is what it was."""
    dispatcher = caller.dispatcher
    before = next((layer for layer in dispatcher.process_policy.layers if layer.source == "set_policy"), None)
    try:
        yield
    finally:
        dispatcher.set_process_layer(before)
