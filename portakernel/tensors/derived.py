"""What a kernel makes of a weight before it can read it, kept while the weight lives and nothing has written to it.

Libraries pack weights into layouts of their own. A kernel that calls one packs at the first call with a weight, and
keeps the result: beside the weight that takes memory, and time once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.host.locks import make_lock
from portakernel.tensors.capture import is_capturing

T = TypeVar("T")


class _Kept(NamedTuple, Generic[T]):
    """What was made, of which versions of its sources; weak references that end it with their memory."""

    value: T
    versions: tuple[int, ...]
    memory: tuple[weakref.ref[torch.UntypedStorage], ...]


class Derived(Generic[T]):
    """What is derived from tensors, once for each of them; ``what`` says it in messages: "QuACK's packed weight".

    Tensors are told apart by their memory, and how they lie in it: a view that is made anew for each call is known.
    What is written with torch is seen, as autograd sees it; what is written behind its back is not, and nor is what a
    graph's replay writes: a captured call goes on reading what was derived before.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = make_lock()
        self._kept: dict[Hashable, _Kept[T]] = {}

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def of(self, sources: Sequence[Tensor | None], how: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` returns for ``sources``, of which one at least is a tensor; ``how`` is all else it depends on.

        It is made on the first call, which waits for the device, and on one after a source was written to.

        Raises:
            CannotRun: it would have to be made while a graph is being captured, or for tensors of inference mode, of
                which torch counts no writes.
        """
        tensors = [source for source in sources if source is not None]
        if any(tensor.is_inference() for tensor in tensors):
            text = (
                f"keeps {self._what} for each weight, and torch counts no writes to a weight made in inference mode;"
                " make it outside of torch.inference_mode()"
            )
            raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, text))
        storages = [tensor.untyped_storage() for tensor in tensors]
        key = (how, tuple(None if source is None else _place(source) for source in sources))
        versions = tuple(tensor._version for tensor in tensors)
        with self._lock:
            known = self._kept.get(key)
            if known is not None and known.versions == versions:
                return known.value
            if is_capturing():
                text = f"makes {self._what} at the first call with a weight; call once before capturing a graph"
                raise CannotRun(Rejection(ReasonCode.NOT_CAPTURABLE, text))
            value = make()
            if tensors[0].device.type == "cuda":  # other streams may read it
                torch.cuda.current_stream(tensors[0].device).synchronize()
            memory = tuple(weakref.ref(storage, lambda _: self._kept.pop(key, None)) for storage in storages)
            self._kept[key] = _Kept(value, versions, memory)
            return value


def _place(tensor: Tensor) -> Hashable:
    """Which memory a tensor is of, and how it lies there; the same for another only once that memory is gone."""
    how = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
    return id(tensor.untyped_storage()), *how
