"""What Triton's interpreter works out anew for each operation, worked out once: most of its time goes there.

The same operations run on the same numbers in the same order. What is kept are the forms of blocks (a shape, checked
and wrapped), the dtypes that NumPy and two operands come to, and what a launch patches and asks of its kernel. What is
left out had no effect: a check for overflow whose outcome goes to a ``device_assert`` that is off, broadcasts to the
same shape, and copies of what NumPy broadcasts itself.
"""
# pyright: reportPrivateUsage=false
# None of this has a public name: it is done to the releases whose code was read, and others run as they are.

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

_RELEASES = ("3.9.",)

Replacement = tuple[Any, str, Any]
_MISSING = object()


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
    from portakernel.triton_launch.interpreter_operations import of_operations
    from portakernel.triton_launch.interpreter_values import of_values

    return (*of_values(), *of_operations(), *_of_launches(), *_of_kernels(), *_of_reductions())


class _Patched:
    """What stood in the place of Triton's builtins before a launch, to be put back after it."""

    def __init__(self, known: list[tuple[Any, dict[str, Any]]]) -> None:
        self.before = [(owner, {name: vars(owner).get(name, _MISSING) for name in of}) for owner, of in known]
        for owner, of in known:
            _set(owner, of)

    def restore(self) -> None:
        for owner, of in self.before:
            _set(owner, {name: value for name, value in of.items() if value is not _MISSING})
            for name in [name for name, value in of.items() if value is _MISSING]:
                delattr(owner, name)


def _set(owner: Any, values: dict[str, Any]) -> None:
    if isinstance(owner, ModuleType):
        vars(owner).update(values)
    else:
        for name, value in values.items():
            setattr(owner, name, value)


def _of_launches() -> tuple[Replacement, ...]:
    """A launch puts in the place of Triton's builtins what the first one found and made."""
    import triton.language as tl
    from triton.runtime import interpreter

    from portakernel.triton_launch.interpreter_operations import OPERATORS

    patch_any = interpreter._patch_lang
    # a builtin looks whether it is called from a kernel, and calls the function that it wraps
    wrapper = tl.core.builtin(lambda: None).__code__
    known: list[tuple[Any, dict[str, Any]]] = []

    def patch_lang(function: Any) -> Any:
        if known:
            return _Patched(known)
        untouched = tl.core.is_builtin(tl.load) and tl.core.is_builtin(tl.core.load)
        scope = patch_any(function)
        if untouched:
            found: dict[int, tuple[Any, dict[str, Any]]] = {}
            for owner, name, _ in scope._changes:
                found.setdefault(id(owner), (owner, {}))[1][name] = vars(owner)[name]
            known.extend(found.values())
        return scope

    def patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic = interpreter.interpreter_semantic
        inner = member.__wrapped__ if getattr(member, "__code__", None) is wrapper else member

        def interpreted(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        scope.set_attr(owner, name, OPERATORS.get(name, interpreted) if owner is tl.tensor else interpreted)

    return ((interpreter, "_patch_lang", patch_lang), (interpreter, "_patch_attr", patch_attr))


def _of_kernels() -> tuple[Replacement, ...]:
    """A launch asks a kernel's function for its parameters once."""
    from triton.runtime import interpreter

    make_executor = interpreter.GridExecutor.__init__
    constants: dict[Any, list[str]] = {}

    def init_executor(self: Any, fn: Any, arg_names: Any, grid: Any, pre_run_hooks: Any = ()) -> None:
        found = constants.get(fn)
        if found is None:
            make_executor(self, fn, arg_names, grid, pre_run_hooks)
            constants[fn] = self.constexprs
        else:
            self.fn, self.arg_names, self.grid, self.pre_run_hooks = fn, arg_names, grid, pre_run_hooks
            self.constexprs = found

    asked = SimpleNamespace(**{**vars(inspect), "getfullargspec": _parameters, "getcallargs": _arguments})
    return ((interpreter.GridExecutor, "__init__", init_executor), (interpreter, "inspect", asked))


def _of_reductions() -> tuple[Replacement, ...]:
    """Exclusive or, of which sorts are made, is reduced by NumPy, as sums are, and not one element after the other."""
    import numpy as np
    from triton.language import standard
    from triton.runtime import interpreter

    reduce_any = interpreter.ReduceOps.apply_impl

    def reduced(self: Any, input: Any) -> Any:
        if self.combine_fn is not standard._xor_combine or self.axis is None:
            return reduce_any(self, input)
        data = np.bitwise_xor.reduce(input[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(data, input[0].dtype)

    return ((interpreter.ReduceOps, "apply_impl", reduced),)


@cache
def _parameters(function: Callable[..., Any]) -> inspect.FullArgSpec:
    return inspect.getfullargspec(function)


def _arguments(function: Callable[..., Any], *positional: Any, **named: Any) -> dict[str, Any]:
    """Each parameter's argument, by name."""
    spec = _parameters(function)
    names, defaults = [*spec.args, *spec.kwonlyargs], spec.defaults or ()
    given = dict(zip(spec.args, positional, strict=False))
    if len(positional) > len(spec.args) or not given.keys().isdisjoint(named) or spec.varargs or spec.varkw:
        return inspect.getcallargs(function, *positional, **named)
    optional = dict(zip(spec.args[len(spec.args) - len(defaults) :], defaults, strict=True))
    found = {**optional, **(spec.kwonlydefaults or {}), **given, **named}
    if found.keys() != set(names):
        return inspect.getcallargs(function, *positional, **named)  # which says what is wrong
    return {name: found[name] for name in names}
