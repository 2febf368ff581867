"""The kit kills every mutant in every case that the mutant touches.

A mutant wraps a real kernel and notes when it changed something; each case in which it did must fail.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from portakernel.conformance.comparison import distance_ulp, ulp_at
from portakernel.conformance.suite import Suite, Unit
from portakernel.contracts import contract
from portakernel.references import rms_norm as reference

KERNELS = ("reference.add", "reference.rms_norm", "torch.add", "torch.rms_norm_cpu")
BLOCK = 32


@dataclass
class Mutant:
    """What a mutant touched in the case at hand."""

    op: str
    allowance: float = 0.0
    touched: bool = False
    calls: int = 0
    buffers: dict[Any, Tensor] = field(default_factory=dict)

    def tolerance(self, dtype: torch.dtype, part: str = "forward") -> float:
        allowed = getattr(contract(self.op).tolerance, part)
        return allowed[str(dtype).removeprefix("torch.")] + self.allowance

    def nudge(self, tensor: Tensor, place: int, steps: int | None = None) -> None:
        """Moves one element by the fewest numbers of its dtype that no rounding within the tolerance explains."""
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), tensor.shape)) if tensor.dim() else ()
        value = tensor[index].reshape(1)
        steps = math.ceil(2 * self.tolerance(tensor.dtype)) + 1 if steps is None else steps
        if not value.isfinite():
            tensor[index] = 0.0
        else:
            tensor[index] = moved(value, steps)[0]
        self.touched = True


def moved(value: Tensor, steps: int) -> Tensor:
    """A finite number moved by ``steps`` numbers: away from zero or, where it is large, twice as many towards it."""
    kind = {2: torch.int16, 4: torch.int32}[value.element_size()]
    bits = value.view(kind).clone()
    magnitude = bits & torch.iinfo(kind).max
    large = bool(value.abs() > 1)
    return (bits - 2 * steps if large and bool(magnitude > 2 * steps) else bits + steps).view(value.dtype)


def smallest(tensor: Tensor) -> int:
    return int(torch.where(tensor.isnan(), math.inf, tensor.double().abs()).argmin())


def first(results: Any) -> Tensor:
    return results[0] if isinstance(results, tuple) else results


# --- mutants of forward: (mutant, kernel) -> kernel -------------------------------------------------------------------


def after(change: Callable[[Mutant, Tensor, tuple[Tensor, ...]], None]) -> Callable[..., Any]:
    """A mutant that changes the output of the kernel, wherever it was written."""

    @functools.wraps(change)
    def wrap(mutant: Mutant, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def mutated(*tensors: Tensor, **keywords: Any) -> Any:
            results = kernel(*tensors, **keywords)
            if first(results).numel():
                change(mutant, first(results), tensors)
            return results

        return mutated

    return wrap


@after
def random_element_wrong(mutant, y, tensors):
    mutant.nudge(y, int(torch.randint(y.numel(), (), generator=torch.Generator().manual_seed(y.numel()))))


@after
def smallest_element_wrong(mutant, y, tensors):
    mutant.nudge(y, smallest(y))


@after
def largest_element_negated(mutant, y, tensors):
    place = int(torch.where(y.isfinite(), y.double().abs(), -1.0).argmax())
    flat = y.reshape(-1) if y.is_contiguous() else None
    if flat is not None and flat[place].isfinite() and abs(flat[place]) > 20 * torch.finfo(y.dtype).smallest_normal:
        flat[place] = -flat[place]
        mutant.touched = True


@after
def nan_lost(mutant, y, tensors):
    if y.isnan().any():
        y.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf)
        mutant.touched = True


@after
def infinity_saturated(mutant, y, tensors):
    if y.isinf().any():
        y.copy_(torch.nan_to_num(y, nan=math.nan))
        mutant.touched = True


@after
def tail_wrong(mutant, y, tensors):
    if y.numel() % BLOCK:
        mutant.nudge(y, y.numel() - 1)


@after
def row_tail_wrong(mutant, y, tensors):
    if y.dim() and y.shape[-1] % BLOCK:
        mutant.nudge(y, y.shape[-1] - 1)


@after
def bfloat16_wrong(mutant, y, tensors):
    if tensors[0].dtype is torch.bfloat16:
        mutant.nudge(y, 0)


def bfloat16_raises(mutant, kernel):
    def mutated(*tensors, **keywords):
        if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
            mutant.touched = True
            raise RuntimeError("no such instruction")
        return kernel(*tensors, **keywords)

    return mutated


def strides_ignored(mutant, kernel):
    def mutated(*tensors, **keywords):
        read = []
        for tensor in tensors:
            if tensor.is_contiguous() or keywords.get("out") is tensor:
                read.append(tensor)
                continue
            strides = torch.empty(tensor.shape, device="meta").stride()
            mutant.touched = True
            read.append(tensor.as_strided(tensor.shape, strides, tensor.storage_offset()))
        return kernel(*read, **keywords)

    return mutated


def element_wrong_where_not_contiguous(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if first(results).numel() and not all(tensor.is_contiguous() for tensor in tensors):
            mutant.nudge(first(results), smallest(first(results)))
        return results

    return mutated


def feature_dropped(mutant, kernel):
    def mutated(*tensors, **keywords):
        mutant.touched |= bool(keywords.get("weight_offset", 0.0)) and tensors[0].numel() > 0
        return kernel(*tensors, **{**keywords, "weight_offset": 0.0})

    return mutated


def value_dropped(mutant, kernel):
    def mutated(*tensors, **keywords):
        mutant.touched |= keywords["eps"] != 1e-6 and tensors[0].numel() > 0
        return kernel(*tensors, **{**keywords, "eps": 1e-6})

    return mutated


def input_returned(mutant, kernel):
    def mutated(*tensors, **keywords):
        mutant.touched = True
        return (tensors[0], *kernel(*tensors, **keywords)[1:]) if keywords.get("save") else tensors[0]

    return mutated


def result_written_into_input(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("out") is not None:
            return results
        mutant.touched = True
        tensors[0].copy_(first(results))
        return (tensors[0], *results[1:]) if keywords.get("save") else tensors[0]

    return mutated


def result_beside_input(mutant, kernel):
    """Right numbers, in the storage of the input: what a caller keeps alive or overwrites with it."""

    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("out") is not None or keywords.get("save"):
            return results
        mutant.touched = True
        y = first(results)
        storage, used = tensors[0].untyped_storage(), tensors[0].untyped_storage().nbytes()
        storage.resize_(used + y.numel() * y.element_size())
        view = torch.empty(0, dtype=y.dtype).set_(storage, used // y.element_size(), y.shape, y.stride())
        return view.copy_(y)

    return mutated


def one_buffer_for_all(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("out") is not None or keywords.get("save") or not first(results).numel():
            return results
        mutant.touched = True
        key = (tensors[0].shape, tensors[0].dtype)
        return mutant.buffers.setdefault(key, torch.empty_like(results)).copy_(results)

    return mutated


def out_ignored(mutant, kernel):
    def mutated(*tensors, out=None, **keywords):
        mutant.touched |= out is not None
        return kernel(*tensors, **keywords)

    return mutated


def out_copied(mutant, kernel):
    """The numbers reach ``out``, and another tensor is returned."""

    def mutated(*tensors, out=None, **keywords):
        results = kernel(*tensors, **keywords)
        if out is not None:
            mutant.touched = True
            out.copy_(results)
        return results

    return mutated


def out_written_short(mutant, kernel):
    def mutated(*tensors, out=None, **keywords):
        if out is None:
            return kernel(*tensors, **keywords)
        kept = out.clone()
        result = kernel(*tensors, out=out, **keywords)
        if out.numel():
            last = (-1,) * out.dim()
            mutant.touched |= not any(tensor is out for tensor in tensors) and not bool(out[last].isnan())
            out[last] = kept[last]
        return result

    return mutated


def out_taken_as_contiguous(mutant, kernel):
    def mutated(*tensors, out=None, **keywords):
        if out is None or out.is_contiguous():
            return kernel(*tensors, out=out, **keywords)
        mutant.touched = True
        strides = torch.empty(out.shape, device="meta").stride()
        out.as_strided(out.shape, strides, out.storage_offset()).copy_(kernel(*tensors, **keywords))
        return out

    return mutated


def out_overrun(mutant, kernel):
    def mutated(*tensors, out=None, **keywords):
        results = kernel(*tensors, out=out, **keywords)
        if out is not None and out.numel():
            mutant.touched = True
            end = out.storage_offset() + sum(
                (size - 1) * step for size, step in zip(out.shape, out.stride(), strict=True)
            )
            out.as_strided((1,), (1,), end + 1).zero_()
        return results

    return mutated


def input_spoilt(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("out") is None and tensors[-1].numel():
            mutant.touched = True
            tensors[-1].view(torch.uint8).bitwise_xor_(1) if tensors[-1].stride()[-1:] == (1,) else tensors[-1].neg_()
        return results

    return mutated


def written_before_read(mutant, kernel):
    def mutated(*tensors, out=None, **keywords):
        if not any(tensor is out for tensor in tensors) or not out.numel():
            return kernel(*tensors, out=out, **keywords)
        want = kernel(*tensors, **keywords).double()
        out.fill_(1.0)
        found = kernel(*tensors, out=out, **keywords)
        mutant.touched |= float(distance_ulp(found, want).max()) > 2 * mutant.tolerance(found.dtype)
        return found

    return mutated


def every_second_call_differs(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        mutant.calls += 1
        y = first(results)
        if mutant.calls % 2 == 0 and y.numel() and keywords.get("out") is None:
            mutant.nudge(y, y.numel() // 2, steps=1)
        return results

    return mutated


def result_not_contiguous(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        y = first(results)
        if keywords.get("out") is not None or keywords.get("save") or y.dim() < 2 or min(y.shape[-2:]) < 2:
            return results
        mutant.touched |= y.numel() > 0
        return y.mT.contiguous().mT

    return mutated


def computed_wider(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("out") is not None or keywords.get("save") or results.dtype is torch.float32:
            return results
        mutant.touched = True
        return results.float()

    return mutated


def saved_element_wrong(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("save") and results[1].numel():
            mutant.nudge(results[1], results[1].numel() - 1)
        return results

    return mutated


FORWARD = (
    random_element_wrong,
    smallest_element_wrong,
    largest_element_negated,
    nan_lost,
    infinity_saturated,
    tail_wrong,
    row_tail_wrong,
    bfloat16_wrong,
    bfloat16_raises,
    strides_ignored,
    element_wrong_where_not_contiguous,
    input_returned,
    result_written_into_input,
    result_beside_input,
    one_buffer_for_all,
    out_ignored,
    out_copied,
    out_written_short,
    out_taken_as_contiguous,
    out_overrun,
    input_spoilt,
    written_before_read,
    every_second_call_differs,
    result_not_contiguous,
    computed_wider,
)


# --- mutants of rms_norm's backward -----------------------------------------------------------------------------------


def gradient_mutant(change: Callable[..., None]) -> Callable[..., Any]:
    """A mutant that changes gradients in place; it counts where an element leaves the tolerance."""

    @functools.wraps(change)
    def wrap(mutant: Mutant, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def mutated(grad, x, weight, rstd, *, eps, weight_offset=0.0, needs):
            given = (grad, x, weight, rstd)
            found = kernel(*given, eps=eps, weight_offset=weight_offset, needs=needs)
            scales = reference.magnitudes(*(tensor.double() for tensor in given), eps=eps, weight_offset=weight_offset)
            changed = [None if gradient is None else gradient.clone() for gradient in found]
            change(changed, scales, given, weight_offset, mutant)
            for before, now, scale in zip(found, changed, scales, strict=True):
                if before is not None and now is not None and now.numel():
                    far = distance_ulp(now, before.double(), scale).max()
                    mutant.touched |= float(far) > 2 * mutant.tolerance(now.dtype, "backward")
            return tuple(changed)

        return mutated

    return wrap


def push(gradient: Tensor, scale: Tensor, place: int, mutant: Mutant) -> None:
    steps = 2 * mutant.tolerance(gradient.dtype, "backward") + 1
    index = torch.unravel_index(torch.tensor(place), gradient.shape)
    far = float(gradient[index]) + steps * float(ulp_at(scale, gradient.dtype)[index])
    gradient[index] = far


@gradient_mutant
def gradient_element_wrong(changed, scales, given, weight_offset, mutant):
    for gradient, scale in zip(changed, scales, strict=True):
        if gradient is not None and gradient.numel():
            push(gradient, scale, gradient.numel() // 2, mutant)


@gradient_mutant
def smallest_gradient_element_wrong(changed, scales, given, weight_offset, mutant):
    for gradient, scale in zip(changed, scales, strict=True):
        if gradient is not None and gradient.numel():
            push(gradient, scale, smallest(gradient), mutant)


@gradient_mutant
def gradient_through_rstd_forgotten(changed, scales, given, weight_offset, mutant):
    grad, x, weight, rstd = (tensor.double() for tensor in given)
    if changed[0] is not None:
        changed[0].copy_(grad * (weight + weight_offset) * rstd.reshape(*x.shape[:-1], 1))


@gradient_mutant
def gradient_ignores_offset(changed, scales, given, weight_offset, mutant):
    if changed[0] is not None:
        changed[0].copy_(reference.backward(*given, eps=0.0, needs=(True, False))[0])


@gradient_mutant
def weight_gradient_of_last_row_only(changed, scales, given, weight_offset, mutant):
    grad, x, _, rstd = (tensor.double() for tensor in given)
    if changed[1] is not None and x.numel():
        changed[1].copy_((grad * x * rstd.reshape(*x.shape[:-1], 1)).reshape(-1, x.shape[-1])[-1])


@gradient_mutant
def gradients_negated(changed, scales, given, weight_offset, mutant):
    for gradient in changed:
        if gradient is not None:
            gradient.neg_()


@gradient_mutant
def weight_gradient_wrong_when_alone(changed, scales, given, weight_offset, mutant):
    if changed[0] is None and changed[1].numel():
        push(changed[1], scales[1], 0, mutant)


@gradient_mutant
def wrong_for_expanded_gradient(changed, scales, given, weight_offset, mutant):
    if changed[0] is not None and changed[0].numel() and not given[0].is_contiguous():
        push(changed[0], scales[0], 0, mutant)


def unneeded_gradient_returned(mutant, kernel):
    def mutated(*tensors, needs, **keywords):
        mutant.touched |= not all(needs)
        return kernel(*tensors, needs=(True, True), **keywords)

    return mutated


def gradient_in_input(mutant, kernel):
    def mutated(grad, *tensors, needs, **keywords):
        grads = kernel(grad, *tensors, needs=needs, **keywords)
        if grads[0] is None or not grad.is_contiguous():
            return grads
        mutant.touched = True
        return grad.copy_(grads[0]), grads[1]

    return mutated


BACKWARD = (
    gradient_element_wrong,
    smallest_gradient_element_wrong,
    gradient_through_rstd_forgotten,
    gradient_ignores_offset,
    weight_gradient_of_last_row_only,
    gradients_negated,
    weight_gradient_wrong_when_alone,
    wrong_for_expanded_gradient,
    unneeded_gradient_returned,
    gradient_in_input,
)


# --- the claims -------------------------------------------------------------------------------------------------------


def cases(suite: Suite) -> Iterator[Unit]:
    return (unit for unit in suite.units() if unit.kind == "case")


def verdicts(suite: Suite, mutant: Mutant, units: list[Unit] | None = None) -> tuple[int, list[str]]:
    """In how many cases the mutant touched something, and those of them that it survived."""
    touched, survived = 0, []
    for unit in units if units is not None else cases(suite):
        mutant.touched = False
        failed = [result for result in suite.run(unit) if result.status == "failed"]
        touched += mutant.touched
        if mutant.touched and not failed:
            survived.append(unit.name)
    return touched, survived


def mutant_of(kernel: str) -> Mutant:
    return Mutant(kernel.partition(".")[2].removesuffix("_cpu"), allowance=1.0 if kernel.startswith("triton") else 0.0)


named: Any = {"ids": lambda value: getattr(value, "__name__", value)}


@pytest.mark.parametrize("mutate", FORWARD, **named)
@pytest.mark.parametrize("kernel", KERNELS)
def test_forward_mutant_is_killed_in_every_case_that_it_touches(make_suite, kernel, mutate):
    mutant = mutant_of(kernel)
    # backward is left out: it takes half the time, and these mutants do not touch it
    suite = make_suite(kernel, forward=functools.partial(mutate, mutant), has_backward=False)
    touched, survived = verdicts(suite, mutant)
    assert touched > 0
    assert survived == []


@pytest.mark.parametrize("mutate", [value_dropped, saved_element_wrong], **named)
@pytest.mark.parametrize("kernel", ["reference.rms_norm", "torch.rms_norm_cpu"])
def test_mutant_of_values_or_saved_tensors_is_killed_in_every_case_that_it_touches(make_suite, kernel, mutate):
    mutant = mutant_of(kernel)
    touched, survived = verdicts(make_suite(kernel, forward=functools.partial(mutate, mutant)), mutant)
    assert touched > 0
    assert survived == []


def test_kernel_that_drops_a_feature_fails_in_every_case_that_asks_for_it(make_suite):
    mutant = mutant_of("reference.rms_norm")
    suite = make_suite("reference.rms_norm", forward=functools.partial(feature_dropped, mutant))
    touched, survived = verdicts(suite, mutant)
    asking = [unit for unit in cases(suite) if unit.case and unit.case.parameters.get("weight_offset")]
    assert touched == len(asking) == 10
    assert survived == []


@pytest.mark.parametrize("mutate", BACKWARD, **named)
def test_wrong_gradient_is_killed_in_every_case_that_it_touches(make_suite, mutate):
    mutant = mutant_of("reference.rms_norm")
    suite = make_suite("reference.rms_norm", backward=functools.partial(mutate, mutant))
    touched, survived = verdicts(suite, mutant)
    assert touched > 0
    assert survived == []


def row_depends_on_the_others(mutant, kernel):
    """Within the tolerance, and still another number than the row alone gives."""

    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        y = first(results)
        if y.shape[0] > 2 and keywords.get("out") is None:
            mutant.nudge(y, 0, steps=1)
        return results

    return mutated


def test_row_that_depends_on_other_rows_is_killed_where_batch_invariance_is_claimed(make_suite):
    mutant = mutant_of("reference.rms_norm")
    claims = frozenset({"batch_invariant"})
    suite = make_suite(
        "reference.rms_norm", forward=functools.partial(row_depends_on_the_others, mutant), properties=claims
    )
    units = [
        unit
        for unit in cases(suite)
        if dict(unit.dtypes)["x"] == "float32"
        and unit.case
        and unit.case.values == "normal"
        and unit.case.leading[:1] > (2,)
    ]
    aspects = {(r.aspect, r.status) for unit in units for r in suite.run(unit) if r.aspect != "claim"}
    assert ("batch_invariance", "passed") not in aspects
    assert ("batch_invariance", "failed") in aspects
    assert ("forward", "failed") not in aspects


@pytest.mark.parametrize(
    ("mutate", "aspects"),
    [
        (result_beside_input, {"view", "purity"}),
        (one_buffer_for_all, {"view"}),
        (out_overrun, {"purity"}),
        (out_copied, {"out", "inplace"}),
        (input_spoilt, {"purity", "determinism"}),
        (every_second_call_differs, {"determinism"}),
        (written_before_read, {"inplace"}),
    ],
    **named,
)
def test_fault_is_blamed_on_its_aspects_alone(make_suite, mutate, aspects):
    mutant = mutant_of("torch.rms_norm_cpu")
    suite = make_suite("torch.rms_norm_cpu", forward=functools.partial(mutate, mutant))
    unit = next(unit for unit in cases(suite) if unit.name == "rms_norm[block and one, x=float32, weight=float32]")
    failed = {result.aspect for result in suite.run(unit) if result.status == "failed"}
    assert failed == aspects


INTERPRETED = ("block and one", "sliced rows", "offset weight", "three dimensions")


@pytest.mark.parametrize(
    "mutate",
    [
        random_element_wrong,
        smallest_element_wrong,
        row_tail_wrong,
        strides_ignored,
        feature_dropped,
        saved_element_wrong,
    ],
    **named,
)
def test_mutant_of_a_triton_kernel_is_killed_in_the_interpreter(make_suite, mutate):
    pytest.importorskip("triton")
    mutant = mutant_of("triton.rms_norm")
    suite = make_suite("triton.rms_norm", forward=functools.partial(mutate, mutant))
    assert suite.venue.mode == "interpreter"
    units = [
        unit
        for unit in cases(suite)
        if unit.case and unit.case.name in INTERPRETED and dict(unit.dtypes)["weight"] in {"float32", "bfloat16"}
    ]
    touched, survived = verdicts(suite, mutant, units)
    assert touched > 0
    assert survived == []


@pytest.mark.parametrize("mutate", [gradient_element_wrong, gradient_ignores_offset], **named)
def test_wrong_gradient_of_a_triton_kernel_is_killed_in_the_interpreter(make_suite, mutate):
    pytest.importorskip("triton")
    mutant = mutant_of("triton.rms_norm")
    suite = make_suite("triton.rms_norm", backward=functools.partial(mutate, mutant))
    units = [unit for unit in cases(suite) if unit.case and unit.case.name == "offset weight"]
    touched, survived = verdicts(suite, mutant, units)
    assert touched == 5
    assert survived == []
