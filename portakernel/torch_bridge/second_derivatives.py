"""The gradient of an op's gradient: PyTorch's own, of the reference's backward formula."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.contracts import reference_module
from portakernel.errors import DerivativeError
from portakernel.host.as_written import as_written
from portakernel.tensors.torch_internals import saved_tensor_hooks
from portakernel.torch_bridge.signature import Signature


class SecondDerivatives:
    """Differentiates ``<op>_backward``, whichever kernel ran it, through the op's reference.

    What forward saved depends on the arguments, and reaches backward as if it did not: so it is computed again from
    what else backward is given. A reference says how with ``saved``, or by its ``forward`` where none is missing.
    """

    def __init__(self, caller: OpCaller, signature: Signature) -> None:
        self.caller = caller
        self.contract = caller.contract
        self.signature = signature

    @as_written
    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keeps backward's arguments, without the tensors that forward saved."""
        del output
        (_, values, (needs, _, _)), _ = self.signature.backward(inputs)
        ctx.save_for_backward(*inputs[: len(self.signature.grads) + len(self.contract.backward_inputs)])
        ctx.values, ctx.needs = values, tuple(needs)

    @as_written
    def gradient(self, ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients for backward's arguments from those of the gradients that it returned.

        Raises:
            DerivativeError: what forward saved cannot be computed again.
        """
        tensors, needs = ctx.saved_tensors, ctx.needs
        wanted = [place for place, tensor in enumerate(tensors) if tensor is not None and ctx.needs_input_grad[place]]
        returned: list[int] = []

        def formula(*varied: Tensor) -> tuple[Tensor, ...]:
            given = list(tensors)
            for place, tensor in zip(wanted, varied, strict=True):
                given[place] = tensor
            gradients = self._gradients(given, ctx.values, needs)
            returned[:] = [place for place, gradient in enumerate(gradients) if needs[place] and gradient is not None]
            return tuple(gradients[place] for place in returned)

        differentiate = _recorded if saved_tensor_hooks() else _transformed
        gradients = differentiate(
            formula, [tensors[place] for place in wanted], lambda: tuple(upstream[place] for place in returned)
        )
        pulled = dict(zip(wanted, gradients, strict=True))
        return tuple(pulled.get(place) for place in range(len(ctx.needs_input_grad)))

    def _gradients(self, given: Sequence[Any], values: Sequence[Any], needs: tuple[bool, ...]) -> Sequence[Any]:
        """The reference's gradients as a function of ``given`` alone: gradients of the results, and what is kept."""
        parameters = dict(zip(self.caller.arguments.parameters, values, strict=True))
        # a permission to write over an argument is for callers that go backward once
        parameters |= {p.name: p.default for p in self.contract.parameters if p.permission}
        kept = dict(zip(self.contract.backward_inputs, given[len(self.signature.grads) :], strict=True))
        saved = self._saved(kept, parameters)
        gradients: Sequence[Any] = self._reference.backward(*given, *saved, **parameters, needs=needs)
        return gradients

    def _saved(self, kept: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[Any]:
        """The tensors that forward saves, None for those that do not exist in this call."""
        exist = [result.name for result in self.contract.at(parameters).saved]
        if not exist:
            return [None] * len(self.contract.saved)
        if hasattr(self._reference, "saved"):
            saved = self._reference.saved(*kept.values(), **parameters)
        elif set(self.contract.names) <= kept.keys():
            given = [(tensor, kept[tensor.name]) for tensor in self.contract.tensors]
            keywords = {argument.name: tensor for argument, tensor in given if argument.keyword}
            positional = [tensor for argument, tensor in given if not argument.keyword]
            saved = self._reference.forward(*positional, **keywords, **parameters, save=True)[-len(exist) :]
        else:
            op, names = self.contract.op, ", ".join(exist)
            raise DerivativeError(
                f"{op} has a gradient, but no gradient of its gradient where forward saves {names}, which cannot be"
                f" computed again from what backward is given; {reference_module(op)}.forward has one"
            )
        named = dict(zip(exist, saved, strict=True))
        return [named.get(result.name) for result in self.contract.saved]

    @functools.cached_property
    def _reference(self) -> Any:
        return importlib.import_module(reference_module(self.contract.op))


def _transformed(
    formula: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor], cotangents: Callable[[], tuple[Tensor, ...]]
) -> Sequence[Tensor | None]:
    """The gradients of ``formula`` by ``torch.func``, which can be traced and stands inside other transforms."""
    pull = torch.func.vjp(formula, *tensors)[1]
    gradients: Sequence[Tensor | None] = pull(cotangents())
    return gradients


def _recorded(
    formula: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor], cotangents: Callable[[], tuple[Tensor, ...]]
) -> Sequence[Tensor | None]:
    """The same by autograd, for where hooks for saved tensors are in force."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # views, because one of the tensors may depend on another
        varied = [tensor.view_as(tensor) if tensor.requires_grad else tensor.detach() for tensor in tensors]
        varied = [tensor.requires_grad_() for tensor in varied]
        pairs = [pair for pair in zip(formula(*varied), cotangents(), strict=True) if pair[0].requires_grad]
    if not pairs:
        return [None] * len(tensors)
    results, given = zip(*pairs, strict=True)
    return torch.autograd.grad(results, varied, given, create_graph=again, allow_unused=True)
