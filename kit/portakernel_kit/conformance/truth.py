"""What a case's results have to be: the op's reference, evaluated in float64 on exactly the kernel's inputs.

On the CPU whatever the device, unless somebody says otherwise: not every device has float64, and the device's own
arithmetic is what is being checked.
A reference may say itself what the truth is (``truth``), where the formula on float64 numbers is not: quantised
results before they are rounded, say. Of an op that writes into its arguments, ``truth`` returns what these hold then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel.contract import Contract
from portakernel_kit.conformance.comparison import numbers, ulp_at
from portakernel_kit.conformance.inputs import Inputs
from portakernel_kit.conformance.op_faults import asked, counted, reference_of

# A part of a sum is so many times as large as the root of the sum of squares of all terms in one case of 10,000.
_PARTS_AT_MOST = 4
# Kernels multiply float32 in three products of TF32 numbers, which leaves about 2**-18 of the terms.
_FLOAT32_UNITS = 64.0


def exact(tensor: Tensor, on: torch.device | str = "cpu") -> Tensor:
    """The same numbers in float64 on the CPU, or another device; integers stay integers."""
    found = tensor.detach().to(on)
    return numbers(found) if found.dtype.is_floating_point else found


def unspecified(inputs: Inputs, on: torch.device | str = "cpu") -> Mapping[str, Tensor]:
    """Of each result that has any, the elements of which the contract says nothing: true there."""
    reference = reference_of(inputs.contract)
    if not hasattr(reference, "unspecified"):
        return {}
    positional, keywords = inputs.keywords([None if tensor is None else exact(tensor, on) for tensor in inputs.tensors])
    found: Mapping[str, Tensor] = asked(reference, "unspecified")(*positional, **keywords)
    return found


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient, and how far off it may be.

    ``magnitude`` is the sum of the absolute terms behind each of its elements, ``plain`` what the plain formula gives,
    ``cancelling`` the norm of what rounding leaves of a row of terms that cancel, of each row or of any, ``slack`` what
    sums lose, or slopes that rounding decides about change.
    """

    value: Tensor
    magnitude: Tensor | None = None
    plain: Tensor | None = None
    cancelling: float | Tensor = 0.0
    slack: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Truth:
    """A case's outputs and saved tensors in float64, by name.

    ``magnitudes`` are those of results that can cancel, ``slack`` what float32 loses of them before it is rounded to
    less, or what rounding the parts of a sum does, ``plain`` what the plain formula gives in the inputs' dtype. Of
    ``free`` elements the contract says nothing, and ``overflowing`` ones may be NaN or infinite. The reference computed
    it, and computes gradients, ``on`` a device; all of it lies on the CPU.
    """

    inputs: Inputs
    outputs: Mapping[str, Tensor]
    saved: Mapping[str, Tensor]
    magnitudes: Mapping[str, Tensor | None]
    slack: Mapping[str, Tensor]
    plain: Mapping[str, Tensor]
    free: Mapping[str, Tensor]
    overflowing: Mapping[str, Tensor]
    on: torch.device | str = "cpu"

    @property
    def contract(self) -> Contract:
        """The contract, without open choices."""
        return self.inputs.contract

    @classmethod
    def of(cls, inputs: Inputs, on: torch.device | str = "cpu") -> Truth:
        """The truth about these inputs, as the reference computes it ``on`` a device.

        Raises:
            OpFault: the reference cannot say it.
        """
        contract, reference = inputs.contract, reference_of(inputs.contract)
        outputs = [output.name for output in inputs.results]
        given = [None if tensor is None else exact(tensor, on) for tensor in inputs.tensors]
        stored = [None if tensor is None else tensor.detach().to(on) for tensor in inputs.tensors]
        with torch.no_grad():
            if hasattr(reference, "truth"):
                found = _call(reference, "truth", inputs, stored)
            elif contract.mutated:
                found = _written(reference, inputs, given)
            else:
                # saved tensors as the contract of all values has them
                found = _call(reference, "forward", inputs, given, **({"save": True} if contract.saved else {}))
            plain: tuple[Tensor, ...] = ()
            magnitudes: tuple[Tensor | None, ...] = ()
            if contract.tolerance.rule == "plain":
                plain = _call(reference, "plain", inputs, stored)
            if hasattr(reference, "output_magnitudes"):
                magnitudes = _call(reference, "output_magnitudes", inputs, given)
            free = unspecified(inputs, on)
            saved_magnitudes: tuple[Tensor | None, ...] = ()
            if hasattr(reference, "saved_magnitudes"):
                saved_magnitudes = _call(reference, "saved_magnitudes", inputs, given)
        saved = [result.name for result in contract.saved]
        made = "truth" if hasattr(reference, "truth") else "forward"
        named = dict(
            zip([*outputs, *saved], counted(found, [*outputs, *saved], f"the reference's {made}"), strict=True)
        )
        slack: dict[str, Tensor] = {}
        if getattr(reference, "FLOAT32_MAGNITUDES", False):
            wide = [inputs.dtype(output) is torch.float32 for output in inputs.results]
            ulps = contract.tolerance.forward["float32"]
            for name, magnitude, held in zip(outputs, magnitudes, wide, strict=True):
                if magnitude is not None and not held:
                    slack[name] = ulps * ulp_at(magnitude, torch.float32)
            magnitudes = tuple(m if held else None for held, m in zip(wide, magnitudes, strict=True))
        if _sums_in_order(reference):
            single = [_single(tensor, on) for tensor in inputs.tensors]
            with torch.no_grad():
                lost = _call(reference, "forward", inputs, single)
            slack |= {name: _lost(one, named[name]) for name, one in zip(outputs, lost, strict=True)}
        overflowing: dict[str, Tensor] = {}
        if hasattr(reference, "output_roundings"):
            sizes = _call(reference, "output_roundings", inputs, stored)
            for result, size in zip([*inputs.results, *contract.saved], sizes, strict=False):
                told = torch.finfo(inputs.dtype(result))
                # twice what parts of one size lose on average, each half a unit at most
                slack[result.name] = (told.eps * size).nan_to_num(0.0, 0.0)
                overflowing[result.name] = size.isfinite() & (_PARTS_AT_MOST * size > told.max)
        sizes_of = dict(zip(outputs, magnitudes, strict=False)) | dict(zip(saved, saved_magnitudes, strict=False))
        return cls(
            inputs,
            {name: named[name].cpu() for name in outputs},
            {name: named[name].cpu() for name in saved},
            {name: None if size is None else size.cpu() for name, size in sizes_of.items()},
            {name: lost.cpu() for name, lost in slack.items()},
            {name: exact(tensor) for name, tensor in zip([*outputs, *saved], plain, strict=False)},
            {name: where.cpu() for name, where in free.items()},
            {name: where.cpu() for name, where in overflowing.items()},
            on,
        )

    def untouched(self) -> dict[str, Tensor]:
        """Of each argument that the op writes, the elements that it leaves as they are: those that keep any value."""
        reference, kept = reference_of(self.contract), list[tuple[Tensor, ...]]()
        for fill in (1.0, 2.0):
            # in their own dtypes, which decide what may be asked of the op
            given = [None if tensor is None else tensor.detach().to("cpu") for tensor in self.inputs.tensors]
            for place, argument in enumerate(self.contract.tensors):
                if argument.mutated and (tensor := given[place]) is not None:
                    given[place] = torch.full(tensor.shape, fill).to(tensor.dtype)
            with torch.no_grad():
                kept.append(tuple(exact(tensor) == fill for tensor in _written(reference, self.inputs, given)))
        names = [result.name for result in self.inputs.results]
        return {name: one & other for name, one, other in zip(names, *kept, strict=True)}

    def kept(self, device: torch.device) -> tuple[Tensor | None, ...]:
        """What the contract hands to a backward kernel beside the gradients, each rounded once, on ``device``."""
        held: dict[str, Tensor | None] = dict(self.inputs.given)
        for results, truth in ((self.contract.outputs, self.outputs), (self.contract.saved, self.saved)):
            for result in results:
                held[result.name] = truth[result.name].to(self.inputs.dtype(result)).to(device)
        return tuple(held.get(name) for name in self._kept_names())

    def _kept_names(self) -> list[str]:
        whole = _whole(self.contract)
        return [*whole.backward_inputs, *(saved.name for saved in whole.saved)]

    def gradients(self, grads: Sequence[Tensor | None]) -> tuple[Gradient | None, ...]:
        """The gradient for every tensor argument, from those of the outputs; None where the op has none."""
        if self.contract.gradient == "identity":
            wide = exact(grads[0]) if grads[0] is not None else None
            return tuple(None if wide is None else Gradient(wide, wide.abs()) for _ in self.inputs.tensors)
        if self.contract.tolerance.rule == "plain":
            return self._plain_gradients(grads)
        reference, on = reference_of(self.contract), self.on
        wide_grads = [None if g is None else exact(g, on) for g in grads]
        kept = self._exactly_kept()
        # what backward may write over is read again for the magnitudes
        off = {p.name: p.default for p in self.contract.parameters if p.permission}
        parameters = {**self.inputs.parameters, **off}
        with torch.no_grad():
            needs = tuple(t is not None and t.dtype.is_floating_point for t in self.inputs.tensors)
            values = asked(reference, "backward")(*wide_grads, *kept, **parameters, needs=needs)
            magnitudes = asked(reference, "magnitudes")(*wide_grads, *kept, **parameters)
            lost: Sequence[Tensor | None] = [None] * len(values)
            if _sums_in_order(reference):
                given = [None if tensor is None else _single(tensor, on) for tensor in (*wide_grads, *kept)]
                lost = reference.backward(*given, **parameters, needs=needs)
        names = [f"the gradient of {name}" for name in self.contract.names]
        values = counted(values, names, "the reference's backward")
        magnitudes = counted(magnitudes, names, "the reference's magnitudes")
        return tuple(
            None
            if value is None
            else Gradient(value.cpu(), _cpu(magnitude), slack=None if one is None else _lost(one, value).cpu())
            for value, magnitude, one in zip(values, magnitudes, lost, strict=True)
        )

    def _exactly_kept(self) -> list[Tensor | None]:
        """What backward is given beside the gradients, in float64: outputs as they are handed over, rounded."""
        on = self.on
        held: dict[str, Tensor | None] = {name: exact(tensor, on) for name, tensor in self.inputs.given.items()}
        held |= {o.name: exact(self.outputs[o.name].to(self.inputs.dtype(o)), on) for o in self.contract.outputs}
        held |= {name: saved.to(on) for name, saved in self.saved.items()}
        return [held.get(name) for name in self._kept_names()]

    def _plain_gradients(self, grads: Sequence[Tensor | None]) -> tuple[Gradient | None, ...]:
        """Autograd through the plain formula: in float64 for the truth, in the inputs' dtype for the distance."""
        on = self.on
        exact_ones = self._autograd([None if t is None else exact(t, on) for t in self.inputs.tensors], grads)
        stored = [None if t is None else t.detach().to(on) for t in self.inputs.tensors]
        rounded = self._autograd(stored, grads)
        # what a zero is the difference of is of the size of other rows: of other gradients' where all of it is zero
        norms = [0.0 if value is None else _largest_row(value) for value in exact_ones]
        floats = [t.dtype for t in self.inputs.given.values() if t.dtype.is_floating_point]
        single = _FLOAT32_UNITS * torch.finfo(torch.float32).eps
        unit = max(single if d is torch.float32 else 2.0 * torch.finfo(d).eps for d in floats)
        roundings: Sequence[Tensor | None] = [None] * len(exact_ones)
        reference = reference_of(self.contract)
        if hasattr(reference, "gradient_roundings"):
            wide = [None if grad is None else exact(grad, on) for grad in grads]
            given = {"single": single / unit, **self.inputs.parameters}
            roundings = asked(reference, "gradient_roundings")(*wide, *self._exactly_kept(), **given)
        doubts: Sequence[Tensor | None] = [None] * len(exact_ones)
        if hasattr(reference, "gradient_doubts"):
            positional, keywords = self.inputs.keywords(stored)
            held = [None if grad is None else grad.detach().to(on) for grad in grads]
            doubts = asked(reference, "gradient_doubts")(*held, *positional, **keywords)
        found: list[Gradient | None] = []
        for value, plain, norm, terms, doubt in zip(exact_ones, rounded, norms, roundings, doubts, strict=True):
            if value is None or plain is None:
                found.append(None)
                continue
            alike = unit * (norm or max(norms))
            own = 0.0 if terms is None else unit * torch.linalg.vector_norm(_rows(terms), dim=-1).cpu()
            found.append(Gradient(value.cpu(), plain=exact(plain), cancelling=alike + own, slack=_cpu(doubt)))
        return tuple(found)

    def _autograd(self, tensors: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        leaves = [t.clone().requires_grad_() if t is not None and t.dtype.is_floating_point else t for t in tensors]
        outputs = _call(reference_of(self.contract), "plain", self.inputs, leaves)
        pairs = zip(outputs, [o for o in self.contract.outputs if o.differentiable], grads, strict=False)
        used = [
            (output, grad.detach().to(output.device, output.dtype)) for output, _, grad in pairs if grad is not None
        ]
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = iter(torch.autograd.grad([o for o, _ in used], wanted, [g for _, g in used], allow_unused=True))
        return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def _sums_in_order(reference: Any) -> bool:
    """Whether the reference in float32 adds one term after the other, and so tells what sums of these numbers lose.

    Terms of equal size and sign lose up to half a unit in the last place each, all to the same side; terms drawn alike
    lose the root of that (Higham & Mary 2019, A new approach to probabilistic rounding error analysis).
    """
    return bool(getattr(reference, "SUMS_IN_ORDER", False))


def _single(tensor: Tensor | None, on: torch.device | str) -> Tensor | None:
    found = None if tensor is None else tensor.detach().to(on)
    return found.float() if found is not None and found.dtype.is_floating_point else found


def _cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()


def _lost(single: Tensor, value: Tensor) -> Tensor:
    """Four times what was lost, since another order loses other digits; nothing where either is no number."""
    return 4.0 * (single.double() - value).abs().nan_to_num(0.0, 0.0)


def _largest_row(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(_rows(gradient), dim=-1).max()) if gradient.numel() else 0.0


def _rows(numbers: Tensor) -> Tensor:
    finite = torch.where(numbers.isfinite(), numbers, 0.0)
    return finite.reshape(-1, finite.shape[-1] if finite.dim() and finite.shape[-1] else 1)


def _whole(contract: Contract) -> Contract:
    """The contract before choices were made."""
    from portakernel.contracts import contracts

    return contracts().get(contract.op, contract)


def _written(reference: Any, inputs: Inputs, given: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """What the reference makes of the arguments that it writes; ``given`` stays as it is."""
    mutated = [argument.mutated for argument in inputs.contract.tensors]
    tensors = [t.clone() if t is not None and m else t for t, m in zip(given, mutated, strict=True)]
    _call(reference, "forward", inputs, tensors)
    return tuple(t for t, m in zip(tensors, mutated, strict=True) if t is not None and m)


def _call(
    reference: Any, function: str, inputs: Inputs, tensors: Sequence[Tensor | None], **more: Any
) -> tuple[Tensor, ...]:
    positional, keywords = inputs.keywords(tensors)
    found = asked(reference, function)(*positional, **keywords, **more)
    return found if isinstance(found, tuple) else (found,)
