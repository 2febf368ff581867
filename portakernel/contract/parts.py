"""What a contract is made of: tensor arguments, results, tolerance, cost, and what depends on a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from portakernel.contract.case import Draw
from portakernel.contract.value_rules import ValueRule

T = TypeVar("T")
Shape = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """What depends on the value of the parameter ``by``; ``of`` has an entry, or a further choice, for each."""

    by: str
    of: Mapping[Any, T | Choice[T]]


def alternatives(part: T | Choice[T]) -> list[T]:
    """Everything that ``part`` may become."""
    if not isinstance(part, Choice):
        return [part]
    return [made for inner in part.of.values() for made in alternatives(inner)]


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """A tensor argument: ``shape`` names its dimensions, ``dtypes`` what it may be.

    A size is a dimension's name or an expression over one (``portakernel.contract.sizes``), or ``$k``, the value of the
    ``int`` parameter ``k``. A first dimension ``*M``
    stands for any number of leading dimensions, whose product is ``M``. In ``dtypes``, another argument's name means:
    the same as that one. ``optional`` ones may be None; a ``feature`` among them a kernel must list to be given one.
    ``keyword`` ones stand behind the ``*``. Optional tensors and those behind an optional one come last. ``mutated``
    ones are written, in part or whole: such an op returns nothing. ``rule`` says for which numbers the op is defined,
    where that is not for all.
    """

    name: str
    shape: Shape | Choice[Shape]
    dtypes: tuple[str, ...] | Choice[tuple[str, ...]]
    optional: bool = False
    feature: bool = False
    keyword: bool = False
    mutated: bool = False
    draw: Draw = field(default_factory=Draw)
    rule: ValueRule | None = None

    @property
    def sizes(self) -> Shape:
        """The shape, where no choice is left open."""
        if isinstance(self.shape, Choice):
            raise TypeError(f"the shape of {self.name} depends on {self.shape.by}; ask contract.at(values)")
        return self.shape

    @property
    def leading(self) -> str | None:
        """The name of the product of the leading dimensions, where there are any."""
        return self.sizes[0][1:] if self.sizes and self.sizes[0].startswith("*") else None

    @property
    def fixed(self) -> Shape:
        """The trailing sizes, one each."""
        return self.sizes[1:] if self.leading is not None else self.sizes

    @property
    def described(self) -> str:
        """The shape for people: ``(..., N)``, with one for each value that it depends on."""
        if isinstance(self.shape, Choice):
            shapes = {key: replace(self, shape=shape) for key, shape in self.shape.of.items()}
            return ", ".join(f"{shape.described} for {key}" for key, shape in shapes.items())
        names = ["..." if name.startswith("*") else name for name in self.shape]
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


@dataclass(frozen=True, slots=True)
class Result:
    """An output or saved tensor; ``like`` names the argument whose leading dimensions, dtype and device it takes over.

    ``dtype`` overrides the dtype: a name, or a parameter that holds one; where one is chosen, an empty name does not.
    ``shape`` is as for arguments; a plain ``M`` is the product itself. A size may be an ``int`` parameter's value,
    ``$k``, one more, ``$n+1``, or one value over another, rounded up: ``$n/$m``; or ``R|M``, the dimension R, in calls
    that have none M. ``when``: it exists only where a parameter has that value, or one of a tuple or range of them.
    Only ``differentiable`` outputs have gradients.
    """

    name: str
    shape: Shape | Choice[Shape]
    like: str
    dtype: str | Choice[str] | None = None
    when: tuple[str, Any] | None = None
    differentiable: bool = True


@dataclass(frozen=True, slots=True)
class Cost:
    """The least that any implementation must move and compute."""

    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far each result may be from the float64 reference.

    ``ulp``: in units in the last place of the result's own dtype, element by element; keys are dtypes, or
    ``name.dtype`` for one result. Outputs are measured where the true value is; gradients and saved tensors at the
    magnitude of the terms that were summed into them, because cancellation makes the plain distance unbounded for
    every implementation; so are outputs for which the reference has ``output_magnitudes``.

    ``plain``: per row, by twice the distance (in float32, eight times) at which the reference's ``plain`` formula,
    computed in the inputs' own dtype, ends up. Results that have an entry in ``forward`` or ``saved`` under their name
    are measured in ulp even so.

    ``signed_zeros``: where an output is zero, it has the sign that the formula gives.

    ``flushed``: what may be zero, it or terms of it, where it is subnormal in float32: gradients, or outputs too.
    """

    forward: Mapping[str, float] = field(default_factory=dict[str, float])
    saved: Mapping[str, float] = field(default_factory=dict[str, float])
    backward: Mapping[str, float] = field(default_factory=dict[str, float])
    rule: Literal["ulp", "plain"] = "ulp"
    signed_zeros: bool = False
    flushed: Literal["nothing", "gradients", "all"] = "nothing"
