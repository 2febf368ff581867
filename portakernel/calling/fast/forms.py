"""The forms of an op's calls: what is alike in calls that may read memory, recognised by one check in C++.

A form is first seen through the questions of ``public_source.make_plain``, asked from Python one after the other. From
then on torch's own guard over tensors recognises it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from portakernel.calling.fast.generated import define
from portakernel.host.as_written import as_written
from portakernel.tensors.torch_internals import autograd_is_excluded, tensor_guard

# More than a process mixes in one op: dtypes, ranks, devices, inference mode. The oldest makes place.
MAX_FORMS = 64
# Of exact forms few are worth looking through: a check costs as much as a few of the questions that make a new one.
MAX_EXACT_FORMS = 4

# Of each tensor its dtype and device; None where it is absent.
Kinds = tuple[tuple[torch.dtype, torch.device] | None, ...]


class Form:
    """Calls alike: ``check`` recognises them; ``leaf`` says that some tensor requires gradients, and autograd is here.

    ``signature`` stands for their dtypes and devices in a key; by identity, which costs no hashing of its parts.
    """

    __slots__ = ("check", "leaf", "signature")

    def __init__(self, check: Callable[..., bool], leaf: bool, signature: object) -> None:
        self.check = check
        self.leaf = leaf
        self.signature = signature


class Forms:
    """The forms that were seen; ``latest`` is tried first.

    ``plain`` asks of tensors whether their memory may be read as it is. Where ``exact``, calls of other sizes or
    strides are another form.
    """

    def __init__(self, plain: Callable[..., bool], signatures: Signatures, *, exact: bool = False) -> None:
        self.latest = Form(as_written(lambda *_: False), False, None)
        self._plain = plain
        self._signatures = signatures
        self._exact = exact
        self._known: tuple[Form, ...] = ()

    @as_written
    def find(self, *tensors: Tensor | None) -> Form | None:
        """The form of these tensors, from now on the latest; None when their memory may not be read as it is."""
        if any(isinstance(tensor, Tensor) and tensor.is_nested for tensor in tensors):
            return None
        for form in self._known:
            if form.check(*tensors):
                self.latest = form
                return form
        if not self._plain(*tensors):
            return None
        # where autograd is passed by, which the check sees too, nothing is recorded whatever grad mode says
        requires_grad = any(tensor is not None and tensor.requires_grad for tensor in tensors)
        leaf = requires_grad and not autograd_is_excluded()
        form = Form(self._check(tensors), leaf, self._signatures.of(tensors))
        # another thread's form may be lost here: it is found again when it is next needed
        most = MAX_EXACT_FORMS if self._exact else MAX_FORMS
        self._known = (form, *self._known[: most - 1])
        self.latest = form
        return form

    def _check(self, tensors: Sequence[Tensor | None]) -> Callable[..., bool]:
        """Torch's guard over the tensors, after a look at which are None, and which one tensor given twice.

        The guard itself takes neither.
        """
        distinct: dict[int, str] = {}
        given, terms = list[Tensor](), list[str]()
        names = [f"t{place}" for place in range(len(tensors))]
        for name, tensor in zip(names, tensors, strict=True):
            if tensor is None or id(tensor) in distinct:
                terms.append(f"{name} is {distinct.get(id(tensor))}")
            else:
                distinct[id(tensor)] = name
                given.append(tensor)
        sizes = [list(t.shape) if self._exact else [None] * t.dim() for t in given]
        strides = [list(t.stride()) if self._exact else [None] * t.dim() for t in given]
        guard = tensor_guard(given, sizes, strides)
        if not terms:
            return guard
        return _guard_after(", ".join(names), " and ".join(terms), ", ".join(distinct.values()))(guard)


@functools.lru_cache(maxsize=1024)
def _guard_after(names: str, terms: str, given: str) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Makes ``check(*names)`` of a guard over the ``given`` ones, for calls of which ``terms`` hold."""
    source = f"def make(guard):\n    return lambda {names}: {terms} and guard({given})\n"
    make: Callable[[Callable[..., bool]], Callable[..., bool]] = define(source, "make", "form.check", {})
    return make


class Signatures:
    """One object for each combination of dtypes and devices that an op was called with."""

    def __init__(self) -> None:
        self._known: dict[Kinds, object] = {}

    def of(self, tensors: Sequence[Tensor | None]) -> object:
        """The object that stands for the dtypes and devices of these tensors."""
        kinds = tuple([None if tensor is None else (tensor.dtype, tensor.device) for tensor in tensors])
        # atomic: of two threads that come first together, both get the same
        return self._known.setdefault(kinds, object())
