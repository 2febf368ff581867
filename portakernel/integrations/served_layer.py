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

The first call of a kind (``call_kinds``) is tried, for each instance of the layer: op and client compute the same
inputs, both are held against the formula in float64, and where the op is worse the layer stays the client's, with a
warning. Of an eager call a part of its own inputs is tried; and, as of a traced one, whose tensors have no numbers,
drawn inputs of its kind with the layer's real weights, of magnitudes from tiny to large. Empty calls have no part to be
tried, and rows that are not finite decide nothing. Weights that hold no numbers here (fake ones of an export, shards)
cannot be tried: such a layer is served untried.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portakernel.errors import PortakernelError
from portakernel.integrations.call_kinds import (
    ROWS,
    Kind,
    copied,
    drawn,
    holds_numbers,
    is_telling,
    is_tensor_kind,
    kind_of,
)
from portakernel.integrations.client import client, number_of, record
from portakernel.integrations.first_calls import shortfall
from portakernel.runtime import contract_of
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.torch_internals import outside_modes
from portakernel.text.printable import exception_text

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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

    def kind(self, *arguments: Any) -> Kind:
        """What calls that are tried as one share; plain texts and numbers."""
        return tuple(map(kind_of, arguments))

    def part(self, *arguments: Any) -> tuple[Any, ...]:
        """The first rows of a call's tensors, for a trial."""
        return tuple(each[:ROWS] if isinstance(each, Tensor) and each.dim() else each for each in arguments)

    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        """Inputs of a kind, for a trial."""
        del module
        return tuple(drawn(each, place) if is_tensor_kind(each) else each for place, each in enumerate(kind))

    def __call__(self, module: Any, *arguments: Any) -> Any:
        """The call, by the op where it can and may serve it, else by the client's own code; counted."""
        refused = self.refusal(module, *arguments)
        if torch.compiler.is_compiling():
            if refused:
                record(self.client, self.op_of(*arguments), refused, self.layer)
                return self.own(module, *arguments)
            served = _serves_in_trace(self.client, self.layer, number_of(module), *self.kind(*arguments))
            return self.ours(module, *arguments) if served else self.own(module, *arguments)
        if not refused:
            refused = self.verdict(number_of(module), self.kind(*arguments), lambda: self.part(*arguments))
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
        if module is None or not all(map(holds_numbers, (*module.parameters(False), *module.buffers(False)))):
            return ""
        own = part() if part is not None else ()
        with outside_modes():
            tried = bool(own) and all(map(holds_numbers, own)) and all(map(is_telling, own))
            worse = self._tried(module, own) if tried else ""
            return mine.decide(self.layer, (number, *kind), worse or self._tried(module, self.drawn(module, kind)))

    def _tried(self, module: Any, arguments: tuple[Any, ...]) -> str:
        with torch.no_grad():
            own = self.own(module, *copied(arguments))
            exact = self.exact(module, *copied(arguments, exactly=True))
            try:
                ours = self.ours(module, *copied(arguments))
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


def refused_dtype(x: Tensor) -> str:
    """Why no op takes an input of this dtype; empty where ops do."""
    return "" if x.dtype in DTYPES else f"dtype {x.dtype}: the op takes float32, float16 and bfloat16"
