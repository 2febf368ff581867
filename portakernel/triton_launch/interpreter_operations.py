"""Operations of Triton's interpreter: casts, broadcasts and arithmetic, each of whose types are worked out once.

The two operands of an operation on numbers are brought to one type, but not to one shape: NumPy broadcasts them as it
computes. Only where that could lay the result out otherwise in memory, and so change the order of a later sum, is a
scalar written out.
"""
# pyright: reportPrivateUsage=false
# None of this has a public name; ``interpreter_shortcuts`` says for which releases it is done.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from portakernel.triton_launch.interpreter_values import (
    Form,
    Replacement,
    computation_type,
    form_of,
    form_with,
    most_bytes,
    numpy_dtype,
    unwrapped,
)

_tensor: Any = core.tensor
_dtype, _pointer = core.dtype, core.pointer_type
_cast_any, _broadcast_any = TritonSemantic.cast, TritonSemantic.broadcast_impl_value
_checked_any, _sanitize_any = (
    TritonSemantic.binary_op_type_checking_impl, TritonSemantic.binary_op_sanitize_overflow_impl,
)  # fmt: skip
_to_tensor_any, _expand_any = TritonSemantic.to_tensor, TritonSemantic.expand_dims
_getitem_any, _binary_any = _tensor.__getitem__.__wrapped__, InterpreterBuilder.binary_op

# --- casts ---------------------------------------------------------------------------------------------------------

_CASTABLE = frozenset((*_dtype.SINT_TYPES, *_dtype.UINT_TYPES, *_dtype.STANDARD_FP_TYPES))
# These go by way of float32.
_HALVES = ("fp16", "bf16")


def _cast(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
    source = input.dtype
    if source is dst_ty:
        return input
    if type(dst_ty) is not _dtype or type(source) is not _dtype or fp_downcast_rounding is not None:
        return _cast_any(self, input, dst_ty, fp_downcast_rounding)
    name, wanted = source.name, dst_ty.name
    if name == wanted:
        return input
    plain = name in _CASTABLE and wanted in _CASTABLE and wanted != "int1"
    if not plain or (name in _HALVES and wanted != "fp32"):
        return _cast_any(self, input, dst_ty, fp_downcast_rounding)
    form = form_of(input.type)
    if form is None and input.type.is_block():
        return _cast_any(self, input, dst_ty, fp_downcast_rounding)
    data = input.handle.data
    if (name, wanted) in (("bf16", "fp32"), ("fp32", "bf16")):
        data = interpreter._convert_float(data, source, dst_ty, None).view(numpy_dtype(dst_ty))
    else:
        data = data.astype(numpy_dtype(dst_ty))
    return _tensor(TensorHandle(data, dst_ty), dst_ty if form is None else form.of(dst_ty))


# --- shapes --------------------------------------------------------------------------------------------------------

_joint_forms: dict[tuple[Form, Form], Form] = {}


def _joint(left: Form, right: Form) -> Form | None:
    """The form that blocks of two forms have together; None where Triton has to say that they have none."""
    found = _joint_forms.get((left, right))
    if found is None:
        try:
            found = form_with(np.broadcast_shapes(left.sizes, right.sizes))
        except ValueError:
            return None
        _joint_forms[left, right] = found
    return found


def _spread(value: Any, form: Form, joint: Form) -> Any:
    """A block of ``form`` as one of the form that it has together with another."""
    if form is joint:
        return value
    data = value.handle.data
    for _ in range(len(joint.sizes) - len(form.sizes)):
        data = data[None]
    if data.shape != joint.sizes:
        data = np.broadcast_to(data, joint.sizes)
    return _tensor(TensorHandle(data, value.handle.dtype.scalar), joint.of(value.dtype))


def _splat(value: Any, form: Form) -> Any:
    """A block full of a scalar."""
    handle = value.handle
    data = np.empty(form.sizes, numpy_dtype(handle.dtype))
    data[...] = handle.data
    return _tensor(TensorHandle(data, handle.dtype.scalar), form.of(value.dtype))


def _is_scalar(value: Any) -> bool:
    return not (value.type.is_block() or isinstance(value.handle.dtype, core.block_type))


def _broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
    left, right = form_of(lhs.type), form_of(rhs.type)
    if left is right:
        return (lhs, rhs) if left is not None else _broadcast_any(self, lhs, rhs)
    if left is not None and right is not None:
        if (joint := _joint(left, right)) is not None:
            return _spread(lhs, left, joint), _spread(rhs, right, joint)
    elif right is not None and _is_scalar(lhs):
        return _splat(lhs, right), rhs
    elif left is not None and _is_scalar(rhs):
        return lhs, _splat(rhs, left)
    return _broadcast_any(self, lhs, rhs)


def _typed_together(self: Any, lhs: Any, rhs: Any) -> Any:
    """Both as blocks of the form that they have together; of their data NumPy makes that as it computes."""
    left, right = form_of(lhs.type), form_of(rhs.type)
    if left is right:
        return (lhs, rhs) if left is not None else _broadcast_any(self, lhs, rhs)
    if left is not None and right is not None:
        joint = _joint(left, right)
        if joint is None:
            return _broadcast_any(self, lhs, rhs)
        lhs = lhs if left is joint else _tensor(lhs.handle, joint.of(lhs.dtype))
        return lhs, (rhs if right is joint else _tensor(rhs.handle, joint.of(rhs.dtype)))
    block, scalar, form = (rhs, lhs, right) if left is None else (lhs, rhs, left)
    # a result is laid out like what it is computed from: like rows one after the other, if the block is
    if form is None or scalar.type.is_block() or not block.handle.data.flags.c_contiguous:
        return _broadcast(self, lhs, rhs)
    typed = _tensor(scalar.handle, form.of(scalar.dtype))
    return (typed, rhs) if scalar is lhs else (lhs, typed)


_ALL = slice(None)
_NEW_AXES = tuple((*(_ALL,) * axis, None) for axis in range(8))


def _expand_dims(self: Any, input: Any, axis: Any) -> Any:
    form = form_of(input.type)
    if form is None or type(axis) is not int or not 0 <= axis <= len(form.sizes) < len(_NEW_AXES):
        return _expand_any(self, input, axis)
    data = input.handle.data[_NEW_AXES[axis]]
    expanded = form_with((*form.sizes[:axis], 1, *form.sizes[axis:]))
    return _tensor(TensorHandle(data, input.handle.dtype.scalar), expanded.of(input.dtype))


def _getitem(self: Any, slices: Any, _semantic: Any = None) -> Any:
    semantic, found = interpreter.interpreter_semantic, self
    known = type(slices) is tuple and all(one is None or (type(one) is slice and one == _ALL) for one in slices)
    if not known or len(slices) - slices.count(None) > len(self.shape):
        return _getitem_any(self, slices, _semantic=semantic)
    for axis, one in enumerate(slices):
        if one is None:
            found = semantic.expand_dims(found, axis)
    return found


# --- numbers -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Number:
    """A number as an operand: the dtype that it and the other one come to, and it as a tensor, of other forms too."""

    dtype: Any
    tensor: Any
    typed: dict[Form, Any]


# By a number's type, itself, the dtype beside it, whether it comes first and whether it divides.
_numbers: dict[tuple[Any, ...], _Number] = {}
_MOST_NUMBERS = 4096


def _number(self: Any, value: Any, beside: Any, first: bool, div_or_mod: bool) -> _Number:
    key = type(value), value, beside.name, first, div_or_mod
    found = _numbers.get(key)
    if found is None:
        own = self.to_tensor_type(value)
        pair = (own, True, beside, False) if first else (beside, False, own, True)
        dtype = computation_type(self, *pair, div_or_mod)
        found = _Number(dtype, self._cast_to_computation_type(value, dtype), {})
        if value or type(value) is not float:  # zeros of either sign are equal
            if len(_numbers) >= _MOST_NUMBERS:
                _numbers.clear()
            _numbers[key] = found
    return found


def _beside(self: Any, number: _Number, other: Any, *, first: bool) -> Any:
    """A tensor and a number, of one type."""
    other = _cast(self, other, number.dtype)
    form = form_of(other.type)
    if form is None or not other.handle.data.flags.c_contiguous:
        return _broadcast(self, *((number.tensor, other) if first else (other, number.tensor)))
    typed = number.typed.get(form)
    if typed is None:
        typed = number.typed[form] = _tensor(number.tensor.handle, form.of(number.tensor.dtype))
    return (typed, other) if first else (other, typed)


def _checked(
    self: Any,
    lhs: Any,
    rhs: Any,
    allow_lhs_ptr: bool = False,
    allow_rhs_ptr: bool = False,
    arithmetic_check: bool = True,
    div_or_mod: bool = False,
) -> Any:
    left: Any = lhs.dtype if type(lhs) is _tensor else None
    right: Any = rhs.dtype if type(rhs) is _tensor else None
    if type(left) is _dtype and type(right) is _dtype and arithmetic_check:
        wanted = computation_type(self, left, False, right, False, div_or_mod)
        return _typed_together(self, _cast(self, lhs, wanted), _cast(self, rhs, wanted))
    if type(left) is _dtype and type(rhs) in (int, float) and arithmetic_check:
        return _beside(self, _number(self, rhs, left, False, div_or_mod), lhs, first=False)
    if type(right) is _dtype and type(lhs) in (int, float) and arithmetic_check:
        return _beside(self, _number(self, lhs, right, True, div_or_mod), rhs, first=True)
    if type(left) is _pointer and type(right) is _dtype and allow_lhs_ptr and not right.is_floating():
        return _typed_together(self, lhs, rhs)
    return _checked_any(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)


def _to_tensor(self: Any, x: Any, check_type: bool = True) -> Any:
    return x if type(x) is _tensor else _to_tensor_any(self, x, check_type)


_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


def _binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
    a, b = lhs.data, rhs.data
    if a.dtype.char == "?" and b.dtype.char == "?" and op not in _BITWISE:
        return _binary_any(self, lhs, rhs, op)
    dtype, output = lhs.dtype.scalar, op(a, b)
    if output.itemsize > most_bytes(dtype):
        output = output.astype(numpy_dtype(dtype))
    return TensorHandle(output, dtype)


def _sanitize(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
    if self.builder.options.debug:  # else `device_assert` looks at nothing
        _sanitize_any(self, lhs, rhs, binary_op)


def _arithmetic(name: str, of_numpy: Any) -> Any:
    general = getattr(TritonSemantic, name)
    pointers = name != "mul", name == "add"

    def computed(self: Any, lhs: Any, rhs: Any, sanitize_overflow: bool) -> Any:
        lhs, rhs = _checked(self, lhs, rhs, *pointers)
        if type(rhs.dtype) is _dtype and not self.builder.options.debug:
            if type(lhs.dtype) is _dtype:
                return _tensor(_binary_op(self.builder, lhs.handle, rhs.handle, of_numpy), lhs.type)
            if pointers[1] and not rhs.dtype.is_int_unsigned():
                return _tensor(self.builder.create_addptr(lhs.handle, rhs.handle), lhs.type)
        return general(self, lhs, rhs, sanitize_overflow)

    return computed


def _comparison(name: str, of_numpy: Any) -> Any:
    general = getattr(TritonSemantic, name)

    def compared(self: Any, lhs: Any, rhs: Any) -> Any:
        lhs, rhs = _checked(self, lhs, rhs)
        if type(lhs.dtype) is not _dtype:
            return general(self, lhs, rhs)
        return _tensor(_binary_op(self.builder, lhs.handle, rhs.handle, of_numpy), self._bool_like(lhs))

    return compared


_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_COMPARISONS = {
    "less_than": np.less, "less_equal": np.less_equal, "greater_than": np.greater, "greater_equal": np.greater_equal,
    "equal": np.equal, "not_equal": np.not_equal,
}  # fmt: skip


def of_operations() -> tuple[Replacement, ...]:
    """Of ``TritonSemantic``, and of the builder that has NumPy compute."""
    return (
        (TritonSemantic, "cast", _cast),
        (TritonSemantic, "broadcast_impl_value", _broadcast),
        (TritonSemantic, "expand_dims", _expand_dims),
        (TritonSemantic, "to_tensor", _to_tensor),
        (TritonSemantic, "binary_op_type_checking_impl", _checked),
        (TritonSemantic, "binary_op_sanitize_overflow_impl", _sanitize),
        (InterpreterBuilder, "binary_op", _binary_op),
        *((TritonSemantic, name, _arithmetic(name, of_numpy)) for name, of_numpy in _ARITHMETIC.items()),
        *((TritonSemantic, name, _comparison(name, of_numpy)) for name, of_numpy in _COMPARISONS.items()),
    )


# --- operators -----------------------------------------------------------------------------------------------------


def _operator(name: str, *more: Any, swapped: bool = False) -> Any:
    """What a kernel's operator comes to, without the functions of ``tl`` in between."""

    def straight(self: Any, other: Any, _semantic: Any = None) -> Any:
        return getattr(interpreter.interpreter_semantic, name)(self, unwrapped(other), *more)

    def turned(self: Any, other: Any, _semantic: Any = None) -> Any:
        return getattr(interpreter.interpreter_semantic, name)(unwrapped(other), self, *more)

    return turned if swapped else straight


def _to(self: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False, _semantic: Any = None) -> Any:
    semantic = interpreter.interpreter_semantic
    if unwrapped(bitcast):
        return semantic.bitcast(self, unwrapped(dtype))
    return semantic.cast(self, unwrapped(dtype), unwrapped(fp_downcast_rounding))


OPERATORS = {"__getitem__": _getitem, "to": _to}
OPERATORS |= {f"__{name}__": _operator(name, True) for name in _ARITHMETIC}
OPERATORS |= {f"__r{name}__": _operator(name, True, swapped=True) for name in _ARITHMETIC}
OPERATORS |= {
    f"__{symbol}__": _operator(name)
    for symbol, name in zip(("lt", "le", "gt", "ge", "eq", "ne"), _COMPARISONS, strict=True)
}
