"""The contract of an op: schema, named dimensions, values and features, saved tensors, cases, tolerance, cost.

To add an op, write ``contracts/<op>.py`` with a ``CONTRACT`` and ``references/<op>.py`` with its ``forward`` (and
``backward``); registration in torch, dispatch, the command line and the conformance kit follow from the contract.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal

from portakernel.dtypes import DTYPES
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError

# What a manifest may limit about a tensor argument's memory.
#   contiguous   row-major without gaps
#   flat_rows    all dimensions but the last collapse into one with a single stride, so that `view(-1, N)` needs no copy
#   stride_last  elements between neighbours in the last dimension (1 for a tensor with at most one element there)
#   alignment    the largest power of two, up to 16, that divides the address in bytes
LAYOUT_FACTS: tuple[str, ...] = ("contiguous", "flat_rows", "stride_last", "alignment")

Layout = Literal["contiguous", "sliced", "transposed", "expanded", "stepped", "offset", "split"]
Values = Literal["normal", "large", "tiny", "special", "zeros"]


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """A tensor argument: ``shape`` names its dimensions, ``dtypes`` what it may be.

    A first dimension ``*M`` stands for any number of leading dimensions, whose product is ``M``. In ``dtypes``, another
    argument's name means: the same as that one.
    """

    name: str
    shape: tuple[str, ...]
    dtypes: tuple[str, ...]

    @property
    def leading(self) -> str | None:
        """The name of the product of the leading dimensions, where there are any."""
        return self.shape[0][1:] if self.shape and self.shape[0].startswith("*") else None

    @property
    def fixed(self) -> tuple[str, ...]:
        """The names of the trailing dimensions, one each."""
        return self.shape[1:] if self.leading is not None else self.shape


@dataclass(frozen=True, slots=True)
class Parameter:
    """A keyword argument: a *value*, which every kernel honours, or a *feature*, which a kernel must list to be asked.

    A feature's default is neutral: passing it changes nothing.
    """

    name: str
    default: float
    feature: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """An output or saved tensor; ``like`` names the argument whose leading dimensions and dtype it takes over.

    ``dtype`` overrides the dtype. ``shape`` is as for arguments; a plain ``M`` is the product itself.
    """

    name: str
    shape: tuple[str, ...]
    like: str
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """The least that any implementation must move and compute."""

    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Case:
    """One input for conformance. Dtypes are not part of it: each kernel runs each case in every dtype it claims.

    ``leading`` is the shape of the ``*`` dimensions; ``layouts`` says how each argument lies in memory (contiguous
    where not named); ``values`` draws the numbers: ``normal``, ``large`` and ``tiny`` magnitudes, ``special`` with NaN,
    both infinities and signed zeros, ``zeros``.
    """

    name: str
    leading: tuple[int, ...]
    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    layouts: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    parameters: Mapping[str, float] = field(default_factory=dict[str, float])
    values: Values = "normal"
    backward: bool = True


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far each result may be from the float64 reference, in units in the last place of its own dtype.

    Outputs are measured where the true value is; gradients and saved tensors at the magnitude of the terms that were
    summed into them, because cancellation makes the plain distance unbounded for every implementation.
    """

    forward: Mapping[str, float]
    saved: Mapping[str, float] = field(default_factory=dict[str, float])
    backward: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Contract:
    """Everything that is true of an op, whichever kernel runs it.

    ``gradient`` is ``kernel`` (backward is an op of its own), ``identity`` (each gradient is the output's gradient, no
    kernel runs) or ``none``. ``saved`` is what forward keeps for backward. ``inplace`` names the arguments that ``out``
    may be. ``infinite_rows`` says whether a row of an argument that holds an infinity gives what the formula gives
    there, or may give NaN throughout. ``autocast`` says what happens to dtypes under autocast: ``keep`` (the op
    computes in float32 anyhow) or ``promote`` (arguments of different float dtypes are cast to the widest).
    """

    op: str
    summary: str
    formula: str
    tensors: tuple[TensorArgument, ...]
    outputs: tuple[Result, ...]
    cases: tuple[Case, ...]
    tolerance: Tolerance
    cost: Callable[[Mapping[str, int], Mapping[str, int]], Cost]
    source: str
    notes: str = ""
    parameters: tuple[Parameter, ...] = ()
    saved: tuple[Result, ...] = ()
    gradient: Literal["kernel", "identity", "none"] = "none"
    inplace: tuple[str, ...] = ()
    infinite_rows: Literal["exact", "may_be_nan"] = "exact"
    autocast: Literal["keep", "promote"] = "keep"

    @property
    def features(self) -> tuple[Parameter, ...]:
        """The parameters that a kernel must list to be asked for a non-neutral value."""
        return tuple(parameter for parameter in self.parameters if parameter.feature)

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions, in order of first mention."""
        return tuple(dict.fromkeys(name.lstrip("*") for tensor in self.tensors for name in tensor.shape))

    @property
    def fixed_dims(self) -> tuple[str, ...]:
        """The names of the dimensions that are not products of leading ones."""
        return tuple(dict.fromkeys(name for tensor in self.tensors for name in tensor.fixed))

    def tensor(self, name: str) -> TensorArgument:
        """The tensor argument called ``name``."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def limitable(self) -> tuple[str, ...]:
        """The names that a manifest's limits may use."""
        facts = tuple(f"{tensor.name}.{fact}" for tensor in self.tensors for fact in LAYOUT_FACTS)
        return (*self.dims, *facts)

    def accepted_dtypes(self, name: str, dtypes: Mapping[str, str]) -> tuple[str, ...]:
        """What the argument ``name`` may be, given the dtypes of the arguments before it."""
        return tuple(dict.fromkeys(dtypes.get(dtype, dtype) for dtype in self.tensor(name).dtypes))

    def possible_dtypes(self, name: str) -> tuple[str, ...]:
        """What the argument ``name`` may be in some call."""
        tensors = {tensor.name: tensor for tensor in self.tensors}
        found: list[str] = []
        for entry in tensors[name].dtypes:
            found += self.possible_dtypes(entry) if entry in tensors else [entry]
        return tuple(dict.fromkeys(found))

    def bind_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, int], tuple[int, ...] | None]:
        """The dimensions that the arguments' shapes give, and the leading dimensions; arguments may be missing.

        Raises:
            ArgumentValueError: an argument has the wrong rank, or two arguments disagree on a dimension.
        """
        dims: dict[str, int] = {}
        origin: dict[str, str] = {}
        leading_shape: tuple[int, ...] | None = None
        for tensor in self.tensors:
            shape = shapes.get(tensor.name)
            if shape is None:
                continue
            fixed = tensor.fixed
            wrong_rank = len(shape) < len(fixed) if tensor.leading is not None else len(shape) != len(fixed)
            if wrong_rank:
                raise ArgumentValueError(
                    f"{self.op}: {tensor.name} has shape {tuple(shape)}, but needs {self.describe_shape(tensor)}"
                )
            split = len(shape) - len(fixed)
            if tensor.leading is not None:
                leading = tuple(shape[:split])
                if leading_shape is not None and leading != leading_shape:
                    raise ArgumentValueError(
                        f"{self.op}: {tensor.name} has shape {tuple(shape)}, but {origin[tensor.leading]} has leading"
                        f" dimensions {leading_shape}; they must be equal (broadcasting is refused)"
                    )
                leading_shape = leading
                dims[tensor.leading] = _product(leading)
                origin.setdefault(tensor.leading, tensor.name)
            for name, size in zip(fixed, shape[split:], strict=True):
                if name in dims and dims[name] != size:
                    raise ArgumentValueError(
                        f"{self.op}: {tensor.name} has shape {tuple(shape)}, so {name} = {size}, but {origin[name]} has"
                        f" {name} = {dims[name]}"
                    )
                dims[name] = size
                origin.setdefault(name, tensor.name)
        return dims, leading_shape

    def number(self, name: str, value: object) -> float:
        """The parameter ``name``'s value as a plain number.

        Raises:
            UnknownNameError: the op has no such parameter.
            ArgumentTypeError: the value is no number.
        """
        known = [parameter.name for parameter in self.parameters]
        if name not in known:
            raise UnknownNameError("parameter", name, known, where=self.op)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ArgumentTypeError(f"{self.op}: {name} must be a number; this is {type(value).__name__} {value!r}")
        try:
            return float(value)
        except OverflowError as error:
            raise ArgumentValueError(f"{self.op}: {name} is beyond what a float holds") from error

    def check_dtypes(self, dtypes: Mapping[str, str]) -> None:
        """Nothing, when the arguments' dtypes are ones that the op accepts together.

        Raises:
            ArgumentTypeError: one of them is not; names the argument and what it may be.
        """
        for name, found in dtypes.items():
            accepted = self.accepted_dtypes(name, dtypes)
            if found not in accepted and all(entry in DTYPES for entry in accepted):
                raise ArgumentTypeError(f"{self.op}: {name} is {found}; it must be {' or '.join(accepted)}")

    def describe_shape(self, tensor: TensorArgument) -> str:
        """A tensor argument's shape for people: ``(..., N)``."""
        names = ["..." if name.startswith("*") else name for name in tensor.shape]
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"

    def signature(self) -> str:
        """The op as people call it: ``rms_norm(x, weight, *, eps=1e-06, weight_offset=0.0)``."""
        tensors = [tensor.name for tensor in self.tensors]
        parameters = [f"{parameter.name}={parameter.default!r}" for parameter in self.parameters]
        return f"{self.op}({', '.join([*tensors, '*', *parameters, 'out=None', 'kernel=None'])})"

    def document(self) -> str:
        """The public function's docstring."""
        paragraphs = [self.summary, f"``{self.formula}``", *textwrap.wrap(self.notes, 110, break_long_words=False)]
        names = {tensor.name for tensor in self.tensors}
        arguments = []
        for tensor in self.tensors:
            dtypes = " or ".join(f"the dtype of {dtype}" if dtype in names else dtype for dtype in tensor.dtypes)
            arguments.append(f"{tensor.name}: {self.describe_shape(tensor)}, {dtypes}.")
        for parameter in self.parameters:
            kind = "a feature, neutral at" if parameter.feature else "a value; default"
            arguments.append(f"{parameter.name}: {kind} {parameter.default!r}.")
        arguments.append(f"out: where to write; may be {' or '.join(self.inplace) or 'no input'} itself.")
        arguments.append("kernel: a kernel or plugin to use strictly: that one, or an error.")
        errors = [
            "ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.",
            "NoKernelError: no kernel can serve the call; the message has every kernel's reason.",
        ]
        blocks = [
            "\n\n".join(paragraphs[:2]), "\n".join(paragraphs[2:]),
            "Args:\n" + "\n".join(f"    {line}" for line in arguments),
            "Raises:\n" + "\n".join(f"    {line}" for line in errors),
            f"Source: {self.source}.",
        ]  # fmt: skip
        return "\n\n".join(block for block in blocks if block)


def _product(sizes: tuple[int, ...]) -> int:
    # not math.prod: under tracing the sizes are symbols, and a product that starts at the int 1 keeps them so
    product = 1
    for size in sizes:
        product = product * size
    return product
