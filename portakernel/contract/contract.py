"""The contract of an op: schema, named dimensions, values and features, saved tensors, cases, tolerance, cost.

To add an op, write ``contracts/<op>.py`` with a ``CONTRACT`` and ``references/<op>.py`` with its ``forward`` (and
``backward``); registration in torch, dispatch, the command line and the conformance kit follow from the contract.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from portakernel.contract.case import Case, Draw
from portakernel.contract.choices import choosers, chosen, dtype_of, picked
from portakernel.contract.format_advice import for_bytes, for_calls
from portakernel.contract.grids import Grid
from portakernel.contract.near_misses import answer
from portakernel.contract.parameter import Parameter
from portakernel.contract.parts import Choice, Cost, Result, Shape, TensorArgument, Tolerance, alternatives
from portakernel.contract.shape_binding import Binding, check_requirements
from portakernel.contract.sizes import names_in, parse_size, size_of_values
from portakernel.contract.value_rules import Ends, Indices
from portakernel.errors import ArgumentTypeError, UnknownNameError
from portakernel.text.printable import brief
from portakernel.words.dtypes import DTYPES, FLOAT64

# What a manifest may limit about a tensor argument's memory.
#   contiguous   row-major without gaps
#   flat_rows    all dimensions but the last collapse into one with a single stride, so that `view(-1, N)` needs no copy
#   stride_last  elements between neighbours in the last dimension (1 for a tensor with at most one element there)
#   alignment    the largest power of two, up to 16, that divides the address in bytes
LAYOUT_FACTS: tuple[str, ...] = ("contiguous", "flat_rows", "stride_last", "alignment")

__all__ = [
    "LAYOUT_FACTS",
    "Case",
    "Choice",
    "Contract",
    "Cost",
    "Draw",
    "Ends",
    "Indices",
    "Parameter",
    "Result",
    "TensorArgument",
    "Tolerance",
    "alternatives",
]


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """Everything that is true of an op, whichever kernel runs it.

    ``requirements`` are Python conditions over dimensions, and values of ``int`` parameters (``H % G == 0``, ``$k <=
    E``). ``gradient`` is ``kernel`` (backward is an
    op of its own), ``identity`` (each gradient is the output's gradient, no kernel runs) or ``none``. ``kept`` names
    the arguments and outputs that backward is given, all arguments where it is not said; ``stands_for`` says which of
    them has the form of an argument that is not. ``saved`` is what forward keeps beside them. ``inplace`` names the
    arguments that ``out`` may be (with several outputs, the first is one for the first output, and so on).
    ``infinite_rows`` says whether a row of an argument that holds an infinity gives what the formula gives there, or
    may give NaN throughout. ``autocast`` says what happens to dtypes under autocast: ``keep`` (the op computes in
    float32 anyhow), ``promote`` (arguments of different float dtypes are cast to the widest) or ``cast`` (to autocast's
    own dtype, as matrix products are). ``host_reads`` names arguments whose values the reference reads on the host, for
    which it waits for the device. ``in_graphs`` says how compiled graphs hold the reference: ``fused`` (the formula as
    plain torch has it, which Inductor fuses with what stands around it), ``inline`` (its operators too, but no faster
    for it) or ``call`` (it looks at values, which a trace has not). ``grid`` has the sizes that ``portakernel bench``
    measures.
    """

    op: str
    summary: str
    formula: str
    tensors: tuple[TensorArgument, ...]
    outputs: tuple[Result, ...]
    cases: tuple[Case, ...]
    tolerance: Tolerance
    cost: Callable[[Mapping[str, int], Mapping[str, int], Mapping[str, Any]], Cost]
    source: str
    notes: str = ""
    parameters: tuple[Parameter, ...] = ()
    requirements: tuple[str, ...] = ()
    saved: tuple[Result, ...] = ()
    kept: tuple[str, ...] | None = None
    stands_for: Mapping[str, str] = field(default_factory=dict[str, str])
    gradient: Literal["kernel", "identity", "none"] = "none"
    inplace: tuple[str, ...] = ()
    infinite_rows: Literal["exact", "may_be_nan"] = "exact"
    autocast: Literal["keep", "promote", "cast"] = "keep"
    host_reads: tuple[str, ...] = ()
    in_graphs: Literal["fused", "inline", "call"] = "inline"
    grid: Grid | None = None

    def __post_init__(self) -> None:
        if self.mutated and (self.outputs or self.saved or self.gradient != "none"):
            written = ", ".join(self.mutated)
            raise ValueError(f"{self.op} writes {written}: it has neither outputs nor saved tensors nor a gradient")
        if not self.mutated and not self.outputs:
            raise ValueError(f"{self.op} returns nothing and writes nothing; give outputs, or a mutated tensor")

    # --- names -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        names = ", ".join([*self.names, *(parameter.name for parameter in self.parameters)])
        return brief(f"<Contract {self.op}({names})>")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensor arguments."""
        return _names(self)

    @property
    def mutated(self) -> tuple[str, ...]:
        """The names of the tensor arguments that are written."""
        return tuple(tensor.name for tensor in self.tensors if tensor.mutated)

    @property
    def has_rules(self) -> bool:
        """Whether the numbers in some tensor have a rule, which ``PORTAKERNEL_CHECKS=1`` looks at."""
        return any(tensor.rule is not None for tensor in self.tensors)

    @property
    def results(self) -> tuple[Result, ...]:
        """What a call leaves: its outputs, or the arguments that it writes."""
        written = (tensor for tensor in self.tensors if tensor.mutated)
        return self.outputs or tuple(Result(t.name, t.shape, t.name, differentiable=False) for t in written)

    @property
    def features(self) -> tuple[Parameter | TensorArgument, ...]:
        """What a kernel must list to be asked for a non-neutral value, or to be given a tensor."""
        parameters = (parameter for parameter in self.parameters if parameter.feature)
        return (*parameters, *(tensor for tensor in self.tensors if tensor.feature))

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions, in order of first mention, whatever the parameters."""
        return _dims(self)

    @property
    def fixed_dims(self) -> tuple[str, ...]:
        """The names of the dimensions that are not products of leading ones."""
        return _fixed_dims(self)

    @property
    def backward_inputs(self) -> tuple[str, ...]:
        """The arguments and outputs that backward is given."""
        return self.names if self.kept is None else self.kept

    @property
    def formats(self) -> tuple[str, ...]:
        """The names under which requests and manifests have scale formats."""
        return tuple(parameter.of or parameter.name for parameter in self.parameters if parameter.kind == "format")

    @property
    def typed(self) -> tuple[str, ...]:
        """What has a dtype in requests and manifests: the tensor arguments, and parameters that hold a dtype."""
        return (*self.names, *(parameter.name for parameter in self.parameters if parameter.kind == "dtype"))

    def tensor(self, name: str) -> TensorArgument:
        """The tensor argument called ``name``."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def parameter(self, name: str) -> Parameter:
        """The parameter called ``name``.

        Raises:
            UnknownNameError: the op has none.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        if name in self.names:
            text = f"{name} is a tensor: give tensors by position, or say of it what is known (shape, dtype, format)"
            raise UnknownNameError("parameter", name, known, where=self.op, instead=text)
        if name not in known:
            arguments = (*self.names, *known, *(() if self.mutated else ("out",)), "kernel")
            raise UnknownNameError("parameter", name, known, where=self.op, instead=answer(self.op, name, arguments))
        return known[name]

    def limitable(self) -> tuple[str, ...]:
        """The names that a manifest's limits may use."""
        facts = tuple(f"{tensor.name}.{fact}" for tensor in self.tensors for fact in LAYOUT_FACTS)
        return (*self.dims, *facts)

    # --- values ----------------------------------------------------------------------------------------------------

    def value(self, name: str, value: object) -> Any:
        """The parameter ``name``'s value in its canonical form.

        Raises:
            UnknownNameError: the op has no such parameter, or it no such value.
            ArgumentTypeError, ArgumentValueError: the value is of another kind.
        """
        return self.parameter(name).canonical(self.op, value)

    def parse_parameter(self, name: str, text: str) -> Any:
        """The parameter ``name``'s value as written on a command line; raises what ``value`` does."""
        return self.parameter(name).parse(self.op, text)

    def values(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Every parameter's value: the given one, else the default."""
        given = given or {}
        return {parameter.name: given.get(parameter.name, parameter.default) for parameter in self.parameters}

    @property
    def choosers(self) -> tuple[str, ...]:
        """The parameters that shapes, dtypes or the number of results depend on."""
        return _choosers(self)

    def at(self, values: Mapping[str, Any] | None = None) -> Contract:
        """The contract for calls with these values of its ``choosers``: every choice made, absent results left out."""
        if not self.choosers:
            return self
        known = self.values(values)
        return _at(self, tuple(_concrete(known[name]) for name in self.choosers))

    # --- dtypes ----------------------------------------------------------------------------------------------------

    def accepted_dtypes(self, name: str, dtypes: Mapping[str, str]) -> tuple[str, ...]:
        """What ``name`` (of ``typed``) may be, given the dtypes of the arguments before it."""
        if name not in self.names:
            return self.parameter(name).choices
        several = alternatives(self.tensor(name).dtypes)
        return tuple(dict.fromkeys(dtypes.get(dtype, dtype) for group in several for dtype in group))

    @property
    def in_float64(self) -> str:
        """The argument that calls may give in float64 too, the first of an op that has gradients; empty where none may.

        The reference alone serves such calls, which are for ``torch.autograd.gradcheck``: no kernel can claim them, and
        the kit asks for none. Other arguments follow by their own ``dtypes``; results in float32 are in float64 then.
        """
        return _in_float64(self)

    def possible_dtypes(self, name: str) -> tuple[str, ...]:
        """What ``name`` (of ``typed``) may be in some call."""
        found: list[str] = []
        for entry in self.accepted_dtypes(name, {}):
            found += self.possible_dtypes(entry) if entry in self.names else [entry]
        return tuple(dict.fromkeys(found))

    def check_dtypes(self, dtypes: Mapping[str, str], whole: Contract | None = None) -> None:
        """Nothing, when the arguments' dtypes are ones that calls of the op may have together.

        ``whole`` is the contract before its choices were made, which knows the formats that other dtypes go with.

        Raises:
            ArgumentTypeError: one of them is not; names the argument and what it may be.
        """
        for name, found in dtypes.items():
            accepted = self.accepted_dtypes(name, dtypes)
            more = name == self.in_float64
            if found not in accepted and not (more and found == FLOAT64) and all(entry in DTYPES for entry in accepted):
                wide = f", or {FLOAT64}, which the reference serves" if more else ""
                advice = (
                    wide
                    + for_bytes(found, name, accepted)
                    + (for_calls(whole, found, name) if whole is not None else "")
                )
                raise ArgumentTypeError(f"{self.op}: {name} is {found}; it must be {' or '.join(accepted)}{advice}")

    # --- shapes ----------------------------------------------------------------------------------------------------

    def bind_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, int], tuple[int, ...] | None]:
        """The dimensions that the arguments' shapes give, and the leading dimensions; arguments may be missing.

        Raises:
            ArgumentValueError: an argument has the wrong rank, two arguments disagree on a dimension, or the dimensions
                and, where they are known, the parameters' values do not fit the op's requirements.
        """
        bound = Binding(self.op)
        for tensor in self.tensors:
            if (shape := shapes.get(tensor.name)) is not None:
                bound.add(tensor, shape)
        bound.settle()
        check_requirements(self.op, self.requirements, bound.dims, values)
        return bound.dims, bound.leading

    def form(
        self,
        result: Result,
        dims: Mapping[str, int],
        leading: tuple[int, ...],
        dtypes: Mapping[str, str],
        values: Mapping[str, Any],
    ) -> tuple[tuple[int, ...], str]:
        """The shape and dtype of a result of ``at(values)``."""
        shape: list[int] = []
        for text in picked(result.shape, values):
            if names_in(text) is not None:
                shape.append(size_of_values(text, values))
                continue
            size = parse_size(next((part for part in text.split("|") if part in dims), text).lstrip("*"))
            shape += leading if text.startswith("*") else [size.of(dims[size.name] if size.name is not None else 0)]
        dtype = dtype_of(result, values)
        if dtype == "float32" and dtypes.get(self.in_float64) == FLOAT64:
            dtype = FLOAT64
        return tuple(shape), dtypes[result.like] if dtype is None else str(values.get(dtype, dtype))


@functools.cache
def _names(contract: Contract) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in contract.tensors)


@functools.cache
def _dims(contract: Contract) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for shape in _shapes(contract) for size in shape if (name := _over(size))))


@functools.cache
def _fixed_dims(contract: Contract) -> tuple[str, ...]:
    leading = {shape[0][1:] for shape in _shapes(contract) if shape and shape[0].startswith("*")}
    return tuple(name for name in contract.dims if name not in leading)


def _shapes(contract: Contract) -> list[Shape]:
    return [shape for tensor in contract.tensors for shape in alternatives(tensor.shape)]


@functools.cache
def _in_float64(contract: Contract) -> str:
    first, accepted = contract.names[0], contract.accepted_dtypes(contract.names[0], {})
    return first if contract.gradient != "none" and "float32" in accepted and FLOAT64 not in accepted else ""


_choosers = functools.cache(choosers)
_at = functools.lru_cache(maxsize=1024)(chosen)


def _over(text: str) -> str | None:
    """The dimension that a size is over; none where it is a parameter's value."""
    return None if text.startswith("$") else parse_size(text.lstrip("*")).name


def _concrete(value: Any) -> Any:
    """A value that results' shapes are chosen by; a symbol of a traced graph is fixed there, which the graph guards."""
    return operator.index(value) if not isinstance(value, int) and hasattr(type(value), "__index__") else value
