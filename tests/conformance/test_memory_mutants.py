"""The kit kills every mutant that touches memory it must not, or leaves ``out`` unserved, in every case it touches."""

from __future__ import annotations

import pytest
import torch

from portakernel_kit.conformance.comparison import distance_ulp

KERNELS = ("reference.add", "reference.rms_norm", "torch.add", "torch.rms_norm_cpu")


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
        tensors[0].copy_(mutant.output(results))
        return (tensors[0], *results[1:]) if keywords.get("save") else tensors[0]

    return mutated


def result_beside_input(mutant, kernel):
    """Right numbers, in the storage of the input: what a caller keeps alive or overwrites with it."""

    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("out") is not None or keywords.get("save"):
            return results
        mutant.touched = True
        y = mutant.output(results)
        storage, used = tensors[0].untyped_storage(), tensors[0].untyped_storage().nbytes()
        storage.resize_(used + y.numel() * y.element_size())
        view = torch.empty(0, dtype=y.dtype).set_(storage, used // y.element_size(), y.shape, y.stride())
        return view.copy_(y)

    return mutated


def one_buffer_for_all(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("out") is not None or keywords.get("save") or not mutant.output(results).numel():
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


def result_not_contiguous(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        y = mutant.output(results)
        if keywords.get("out") is not None or keywords.get("save") or y.dim() < 2 or min(y.shape[-2:]) < 2:
            return results
        mutant.touched |= y.numel() > 0
        return y.mT.contiguous().mT

    return mutated


def saved_memory_kept(mutant, kernel):
    kept = {}

    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if not keywords.get("save"):
            return results
        mutant.touched = True
        *outputs, saved = results
        return (*outputs, kept.setdefault(saved.shape, torch.empty_like(saved)).copy_(saved))

    return mutated


MUTANTS = (
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
    result_not_contiguous,
)
named = {"ids": lambda value: getattr(value, "__name__", None)}


@pytest.mark.parametrize("mutate", MUTANTS, **named)
@pytest.mark.parametrize("kernel", KERNELS)
def test_mutant_is_killed_in_every_case_that_it_touches(hunt, kernel, mutate):
    # backward is left out: it takes half the time, and these mutants do not touch it
    verdict = hunt(kernel, forward=mutate, has_backward=False)
    assert verdict.touched > 0
    assert verdict.survived == ()


@pytest.mark.parametrize(
    ("mutate", "aspects"),
    [
        (result_beside_input, {"view", "purity"}),
        (one_buffer_for_all, {"view"}),
        (saved_memory_kept, {"view"}),
        (out_overrun, {"purity"}),
        (out_copied, {"out", "inplace"}),
        (input_spoilt, {"purity", "determinism"}),
        (written_before_read, {"inplace"}),
    ],
    **named,
)
def test_fault_is_blamed_on_its_aspects_alone(failing_aspects, mutate, aspects):
    unit = "rms_norm[block and one, x=float32, weight=float32]"
    assert failing_aspects("torch.rms_norm_cpu", unit, mutate) == aspects
