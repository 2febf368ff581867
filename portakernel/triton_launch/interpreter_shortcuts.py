"""What Triton's interpreter works out anew for each operation, worked out once: most of its time goes there.

The same operations run on the same numbers in the same order. What is kept are the forms of blocks (a shape, checked
and wrapped), the dtypes that NumPy and two operands come to, and the names that a launch patches. What is left out had
no effect: a check for overflow whose outcome goes to a ``device_assert`` that is off, and broadcasts to the same shape.
"""
# pyright: reportPrivateUsage=false
# None of this has a public name: it is done to the releases whose code was read, and others run as they are.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

_RELEASES = ("3.9.",)

Replacement = tuple[Any, str, Callable[..., Any]]


@contextmanager
def shortcuts() -> Iterator[None]:
    """Within this context Triton's interpreter takes them; it is the caller who keeps other launches out."""
    replaced = [(owner, name, vars(owner)[name]) for owner, name, _ in _replacements()]
    for owner, name, value in _replacements():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in replaced:
            setattr(owner, name, value)


@cache
def _replacements() -> tuple[Replacement, ...]:
    import triton

    if not triton.__version__.startswith(_RELEASES):
        return ()
    return (*_of_blocks(), *_of_dtypes(), *_of_operations(), *_of_launches())


@dataclass(eq=False, slots=True)
class _Form:
    """A block's shape as its type and its tensors hold it."""

    shape: Any
    numel: int
    shown: str
    wrapped_shape: Any
    wrapped_numel: Any
    types: dict[str, Any] = field(default_factory=dict[str, Any])


def _of_blocks() -> tuple[Replacement, ...]:
    """``block_type`` and ``tensor`` take the form of an earlier block of that shape."""
    from triton.language import core

    block: Any = core.block_type
    tensor: Any = core.tensor
    make_block, make_tensor, block_to_ir = block.__init__, tensor.__init__, block.to_ir
    forms: dict[tuple[int, ...], _Form] = {}
    scalar_shape, scalar_numel = core.tuple([]), core.constexpr(1)

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        values = shape.values if type(shape) is core.tuple else shape
        sizes = tuple([size.value if type(size) is core.constexpr else size for size in values])
        if any(type(size) is not int for size in sizes):
            make_block(self, element_ty, shape)
            return
        form = forms.get(sizes)
        if form is None:
            make_block(self, element_ty, shape)
            wrapped = core.tuple([core.constexpr(size) for size in self.shape])
            form = forms[sizes] = _Form(self.shape, self.numel, str(self.shape), wrapped, core.constexpr(self.numel))
        self.element_ty, self.shape, self.numel = element_ty, form.shape, form.numel
        self.name = f"<{form.shown}, {element_ty}>"
        self._form = form

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        form = vars(self).get("_form")
        if form is None or type(scalar_ty) is not core.dtype:
            return block(scalar_ty, self.shape)
        found = form.types.get(scalar_ty.name)
        if found is None:
            found = form.types[scalar_ty.name] = block(scalar_ty, self.shape)
        return found

    def to_ir(self: Any, builder: Any) -> Any:
        # for the interpreter a number's type is its own: it refuses there what it does not know
        if type(self.element_ty) is core.dtype and self.element_ty.to_ir(builder) == self.element_ty:
            return self
        return block_to_ir(self, builder)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        if type.is_block():
            form = vars(type).get("_form")
            if form is None:
                make_tensor(self, handle, type)
                return
            self.shape, self.numel = form.wrapped_shape, form.wrapped_numel
        else:
            self.shape, self.numel = scalar_shape, scalar_numel
        self.handle, self.type, self.dtype = handle, type, type.scalar

    return (
        (block, "__init__", init_block),
        (block, "with_element_ty", with_element_ty),
        (block, "to_ir", to_ir),
        (tensor, "__init__", init_tensor),
    )


def _of_dtypes() -> tuple[Replacement, ...]:
    """The dtype in NumPy, the dtype of two operands, and whether two are equal."""
    from triton.language import core, semantic
    from triton.runtime import interpreter

    numpy_dtype, equal = interpreter._get_np_dtype, core.dtype.__eq__
    computed = semantic.TritonSemantic.computation_type_impl
    in_numpy: dict[str, Any] = {}
    of_two: dict[tuple[Any, ...], Any] = {}

    def get_np_dtype(tt_dtype: Any) -> Any:
        name = tt_dtype.scalar.name
        found = in_numpy.get(name)
        if found is None:
            found = in_numpy[name] = numpy_dtype(tt_dtype)
        return found

    def equals(self: Any, other: Any) -> bool:
        if type(other) is core.dtype:
            return bool(self.name == other.name)
        return bool(equal(self, other))

    def computation_type(self: Any, a_ty: Any, a_is_scalar: Any, b_ty: Any, b_is_scalar: Any, div_or_mod: Any) -> Any:
        if type(a_ty) is not core.dtype or type(b_ty) is not core.dtype:
            return computed(self, a_ty, a_is_scalar, b_ty, b_is_scalar, div_or_mod)
        key = a_ty.name, a_is_scalar, b_ty.name, b_is_scalar, div_or_mod
        found = of_two.get(key)
        if found is None:
            found = of_two[key] = computed(self, a_ty, a_is_scalar, b_ty, b_is_scalar, div_or_mod)
        return found

    return (
        (interpreter, "_get_np_dtype", get_np_dtype),
        (core.dtype, "__eq__", equals),
        (semantic.TritonSemantic, "computation_type_impl", computation_type),
    )


def _of_operations() -> tuple[Replacement, ...]:
    """Casts to the same dtype, broadcasts to the same shape, and overflow that nobody is told of."""
    from triton.language.semantic import TritonSemantic

    cast_any, broadcast_any = TritonSemantic.cast, TritonSemantic.broadcast_impl_value
    sanitize_any = TritonSemantic.binary_op_sanitize_overflow_impl

    def cast(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
        return input if input.dtype is dst_ty else cast_any(self, input, dst_ty, fp_downcast_rounding)

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        form = getattr(lhs.type, "_form", None)
        same = form is not None and form is getattr(rhs.type, "_form", None)
        return (lhs, rhs) if same else broadcast_any(self, lhs, rhs)

    def sanitize(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        if self.builder.options.debug:  # else `device_assert` looks at nothing
            sanitize_any(self, lhs, rhs, binary_op)

    return (
        (TritonSemantic, "cast", cast),
        (TritonSemantic, "broadcast_impl_value", broadcast),
        (TritonSemantic, "binary_op_sanitize_overflow_impl", sanitize),
    )


def _of_launches() -> tuple[Replacement, ...]:
    """A launch puts in the place of Triton's builtins what the first one found and made."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch_any = interpreter._patch_lang
    known: list[tuple[Any, str, Any]] = []

    def patch_lang(function: Any) -> Any:
        if known:
            scope = interpreter._LangPatchScope()
            for owner, name, value in known:
                scope.set_attr(owner, name, value)
            return scope
        untouched = tl.core.is_builtin(tl.load) and tl.core.is_builtin(tl.core.load)
        scope = patch_any(function)
        if untouched:
            changed = dict.fromkeys((owner, name) for owner, name, _ in scope._changes)
            known.extend((owner, name, vars(owner)[name]) for owner, name in changed)
        return scope

    def patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic = interpreter.interpreter_semantic

        def interpreted(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return member(*args, **kwargs)

        scope.set_attr(owner, name, interpreted)

    return ((interpreter, "_patch_lang", patch_lang), (interpreter, "_patch_attr", patch_attr))
