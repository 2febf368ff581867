"""Blocks, tensors and dtypes of Triton's interpreter, whose forms are worked out once."""
# pyright: reportPrivateUsage=false
# None of this has a public name; ``interpreter_shortcuts`` says for which releases it is done.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from triton.language import core, semantic
from triton.runtime import interpreter

Replacement = tuple[Any, str, Callable[..., Any]]

_block: Any = core.block_type
_dtype: Any = core.dtype
_make_block, _make_tensor, _block_to_ir = _block.__init__, core.tensor.__init__, _block.to_ir
_numpy_dtype, _equal = interpreter._get_np_dtype, core.dtype.__eq__
_computed, _unwrapped = semantic.TritonSemantic.computation_type_impl, core._unwrap_if_constexpr
_PLAIN = frozenset((core.tensor, core.dtype, int, float, bool, str, type(None)))


@dataclass(eq=False, slots=True)
class Form:
    """A block's shape as its type and its tensors hold it, and the block types of that shape by their numbers' name."""

    sizes: tuple[int, ...]
    shape: Any
    numel: int
    shown: str
    wrapped_shape: Any
    wrapped_numel: Any
    types: dict[str, Any] = field(default_factory=dict[str, Any])

    def of(self, scalar: Any) -> Any:
        """The type of a block of this form that holds ``scalar``, numbers or pointers."""
        if type(scalar) is not _dtype:
            return _block(scalar, self.shape)
        found = self.types.get(scalar.name)
        if found is None:
            found = self.types[scalar.name] = _block(scalar, self.shape)
        return found


_forms: dict[tuple[int, ...], Form] = {}
_SCALAR_SHAPE, _SCALAR_NUMEL = core.tuple([]), core.constexpr(1)


def form_of(type: Any) -> Form | None:
    """The form of a block's type; None of a scalar's, and of one that was made elsewhere."""
    found: Form | None = type.__dict__.get("_form")
    return found


def form_with(sizes: tuple[int, ...]) -> Form:
    """The form of blocks of these sizes."""
    found = _forms.get(sizes)
    if found is None:
        found = form_of(_block(core.int1, list(sizes)))
        assert found is not None
    return found


def _init_block(self: Any, element_ty: Any, shape: Any) -> None:
    values = shape.values if type(shape) is core.tuple else shape
    sizes = tuple([size.value if type(size) is core.constexpr else size for size in values])
    if any(type(size) is not int for size in sizes):
        _make_block(self, element_ty, shape)
        return
    form = _forms.get(sizes)
    if form is None:
        _make_block(self, element_ty, shape)
        wrapped = core.tuple([core.constexpr(size) for size in self.shape])
        form = Form(sizes, self.shape, self.numel, str(self.shape), wrapped, core.constexpr(self.numel))
        _forms[sizes] = form
    self.element_ty, self.shape, self.numel = element_ty, form.shape, form.numel
    self.name = f"<{form.shown}, {element_ty}>"
    self._form = form


def _with_element_ty(self: Any, scalar_ty: Any) -> Any:
    form = form_of(self)
    return _block(scalar_ty, self.shape) if form is None else form.of(scalar_ty)


def _to_ir(self: Any, builder: Any) -> Any:
    # for the interpreter a number's type is its own: it refuses there what it does not know
    if type(self.element_ty) is core.dtype and self.element_ty.to_ir(builder) == self.element_ty:
        return self
    return _block_to_ir(self, builder)


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    form = type.__dict__.get("_form")
    if form is not None:
        self.shape, self.numel, self.dtype = form.wrapped_shape, form.wrapped_numel, type.element_ty
    elif type.is_block():
        _make_tensor(self, handle, type)
        return
    else:
        self.shape, self.numel, self.dtype = _SCALAR_SHAPE, _SCALAR_NUMEL, type.scalar
    self.handle, self.type = handle, type


_most_bytes: dict[str, float] = {}


def most_bytes(dtype: Any) -> float:
    """How many bytes NumPy may take for a number of ``dtype``; a pointer is what it is."""
    found = _most_bytes.get(dtype.name)
    if found is None:
        found = math.inf if isinstance(dtype, core.pointer_type) else max(dtype.primitive_bitwidth, 8) // 8
        _most_bytes[dtype.name] = found
    return found


def _init_handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
    most = _most_bytes.get(dtype.name)
    if data.itemsize > (most_bytes(dtype) if most is None else most):
        self.__post_init__()  # which raises


_in_numpy: dict[str, Any] = {}
_of_two: dict[tuple[Any, ...], Any] = {}


def numpy_dtype(tt_dtype: Any) -> Any:
    """NumPy's dtype for the numbers of a type."""
    name = tt_dtype.scalar.name
    found = _in_numpy.get(name)
    if found is None:
        found = _in_numpy[name] = _numpy_dtype(tt_dtype)
    return found


def _equals(self: Any, other: Any) -> bool:
    if type(other) is core.dtype:
        return bool(self.name == other.name)
    return bool(_equal(self, other))


def computation_type(self: Any, a_ty: Any, a_is_scalar: Any, b_ty: Any, b_is_scalar: Any, div_or_mod: Any) -> Any:
    """The dtype that two operands come to."""
    if type(a_ty) is not core.dtype or type(b_ty) is not core.dtype:
        return _computed(self, a_ty, a_is_scalar, b_ty, b_is_scalar, div_or_mod)
    key = a_ty.name, a_is_scalar, b_ty.name, b_is_scalar, div_or_mod
    found = _of_two.get(key)
    if found is None:
        found = _of_two[key] = _computed(self, a_ty, a_is_scalar, b_ty, b_is_scalar, div_or_mod)
    return found


def unwrapped(o: Any) -> Any:
    """The value of a compile-time constant, anything else as it is."""
    if type(o) in _PLAIN:
        return o
    return o.value if type(o) is core.constexpr else _unwrapped(o)


def of_values() -> tuple[Replacement, ...]:
    """``block_type``, ``tensor``, their handles and dtypes."""
    return (
        (_block, "__init__", _init_block),
        (_block, "with_element_ty", _with_element_ty),
        (_block, "to_ir", _to_ir),
        (core.tensor, "__init__", _init_tensor),
        (interpreter.TensorHandle, "__init__", _init_handle),
        (interpreter, "_get_np_dtype", numpy_dtype),
        (core.dtype, "__eq__", _equals),
        (semantic.TritonSemantic, "computation_type_impl", computation_type),
        (core, "_unwrap_if_constexpr", unwrapped),
    )
