"""One kind of layer of a client, served by an op: refused, tried and counted call by call.

An adapter describes its layer by a subclass, and calls an instance of that from the client's extension point::

    class Norm(ServedLayer):
        def refusal(self, module, x): ...  # why the op cannot serve this call; empty where it can
        def ours(self, module, x): ...  # by the op
        def own(self, module, x): ...  # by the client's own code
        def exact(self, module, x): ...  # the client's formula, for x in float64

    NORM = Norm("vllm", "RMSNorm", "rms_norm")
    NORM(module, x)  # by the op, or by the client

Each gets tensors of its own in a trial: what they write into their arguments is written in the call alone.

The first call of a kind (dtypes, sizes but for the first, whatever is no tensor) is tried: op and client compute the
same inputs, both are held against the formula in float64, and where the op is worse the layer stays the client's, with
a warning. Of an eager call a part of its own inputs is tried; and, as of a traced one, whose tensors have no numbers,
drawn inputs of its kind with the layer's real weights, of magnitudes from tiny to large.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portakernel.errors import PortakernelError
from portakernel.integrations.client import client, number_of, record
from portakernel.integrations.first_calls import shortfall
from portakernel.runtime import contract_of
from portakernel.tensors.capture import is_capturing
from portakernel.text.printable import exception_text

# So many rows of a call are tried, and drawn: enough for each magnitude to come a few times.
ROWS = 24
# Of drawn rows, in turn: what normalisation leaves of them depends on its epsilon.
MAGNITUDES = (1.0, 1e-3, 8.0)


# What calls of one kind share: of each tensor this mark, its dtype, its device and the sizes behind the first one; of
# all else the value. Plain texts and numbers, which a trace takes for constants.
Kind = tuple[Any, ...]
_TENSOR = "tensor"


class ServedLayer(abc.ABC):
    """A layer of a client that an op serves where it can; see the module's text."""

    def __init__(self, client_name: str, layer: str, op: str) -> None:
        self.client = client_name
        self.layer = layer
        self.op = op
        client(client_name).adopt(layer, self)

    def op_of(self, *arguments: Any) -> str:
        """The op that a call is, where one layer is several; of a trace, of the arguments' kinds."""
        del arguments
        return self.op

    @abc.abstractmethod
    def refusal(self, module: Any, *arguments: Any) -> str:
        """Why the op cannot serve this call, by what contracts say; empty where it can."""

    @abc.abstractmethod
    def ours(self, module: Any, *arguments: Any) -> Any:
        """The call by the op."""

    @abc.abstractmethod
    def own(self, module: Any, *arguments: Any) -> Any:
        """The call by the client's own code."""

    @abc.abstractmethod
    def exact(self, module: Any, *arguments: Any) -> Any:
        """The client's formula in float64, for floating-point arguments that are float64 already."""

    def shortfall(self, ours: Any, own: Any, exact: Any, op: str) -> str:
        """Why the op's result is worse than the client's own; empty where it is as good."""
        return shortfall(ours, own, exact, contract_of(op).tolerance)

    def part(self, *arguments: Any) -> tuple[Any, ...]:
        """The first rows of a call's tensors, for a trial."""
        return tuple(each[:ROWS] if isinstance(each, Tensor) and each.dim() else each for each in arguments)

    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        """Inputs of a kind, for a trial."""
        del module
        return tuple(_drawn(each, place) if _is_tensor(each) else each for place, each in enumerate(kind))

    def __call__(self, module: Any, *arguments: Any) -> Any:
        """The call, by the op where it can and may serve it, else by the client's own code; counted."""
        refused = self.refusal(module, *arguments)
        if torch.compiler.is_compiling():
            if refused:
                record(self.client, self.op_of(*arguments), refused, self.layer)
                return self.own(module, *arguments)
            served = _serves_in_trace(self.client, self.layer, number_of(module), *map(_kind_of, arguments))
            return self.ours(module, *arguments) if served else self.own(module, *arguments)
        if not refused:
            kind = tuple(map(_kind_of, arguments))
            refused = self.verdict(number_of(module), kind, lambda: self.part(*arguments))
        record(self.client, self.op_of(*arguments), refused, self.layer)
        return self.own(module, *arguments) if refused else self.ours(module, *arguments)

    def verdict(self, number: int, kind: Kind, part: Callable[[], tuple[Any, ...]] | None = None) -> str:
        """Why the op stands back from such calls of the instance with this number; empty where it serves them.

        A trial says it the first time, of drawn inputs and, where there is one, of a ``part`` of the call's own.
        """
        mine = client(self.client)
        known = mine.verdict(self.layer, (number, *kind))
        if known is not None:
            return known
        if is_capturing():
            return "the first call of its kind came in the capture of a graph, where nothing can be tried"
        module = mine.instance(number)
        worse = self._tried(module, part()) if part is not None else ""
        return mine.decide(self.layer, (number, *kind), worse or self._tried(module, self.drawn(module, kind)))

    def _tried(self, module: Any, arguments: tuple[Any, ...]) -> str:
        with torch.no_grad():
            own = self.own(module, *_copied(arguments))
            exact = self.exact(module, *_copied(arguments, exactly=True))
            try:
                ours = self.ours(module, *_copied(arguments))
            except (PortakernelError, RuntimeError) as error:
                return f"the op failed: {exception_text(error)}"
            return self.shortfall(ours, own, exact, self.op_of(*arguments))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]  # torch.compiler is untyped
def _serves_in_trace(name: str, layer: str, number: int, *kind: Any) -> bool:
    """Whether the op serves a call that is being traced. Counted here: the reason is no constant of the graph."""
    mine = client(name)
    served: ServedLayer = mine.adapter(layer)
    verdict = served.verdict(number, kind)
    mine.ledger.count(served.op_of(*kind), verdict, traced=True, layer=layer)
    return not verdict


def _kind_of(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return (_TENSOR, str(argument.dtype), str(argument.device), *argument.shape[1:])
    return argument


def _is_tensor(kind: Any) -> bool:
    return isinstance(kind, tuple) and kind[:1] == (_TENSOR,)


def _copied(arguments: tuple[Any, ...], *, exactly: bool = False) -> tuple[Any, ...]:
    """Arguments whose tensors are of their own; floating-point ones in float64 where ``exactly``."""
    return tuple(_copy(each, exactly=exactly) if isinstance(each, Tensor) else each for each in arguments)


def _copy(tensor: Tensor, *, exactly: bool) -> Tensor:
    if exactly and tensor.is_floating_point():
        return tensor.detach().to(torch.float64, copy=True)
    return tensor.detach().clone()


def _drawn(kind: Kind, seed: int) -> Tensor:
    _, dtype_name, device, *sizes = kind
    dtype: torch.dtype = getattr(torch, dtype_name.removeprefix("torch."))
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(0, ROWS, (ROWS, *sizes), generator=generator).to(dtype).to(device)
    numbers = torch.randn(ROWS, *sizes, generator=generator)
    scales = torch.tensor(MAGNITUDES).repeat(-(-ROWS // len(MAGNITUDES)))[:ROWS]
    return (numbers * scales.view(-1, *(1 for _ in sizes))).to(dtype).to(device)
