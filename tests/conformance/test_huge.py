"""Calls with more elements than indices reach: a number that wraps around is found, wherever it is used."""

from __future__ import annotations

import pytest
import torch

from portakernel.contracts import contract
from portakernel_kit.conformance import huge

# As if indices had so many bits, and not 32.
ELEMENTS = 1 << 22
WRAPS = 1 << 21


@pytest.fixture
def results(make_suite):
    def found(kernel, **wrapped):
        suite = make_suite(kernel, **wrapped)
        return list(huge.results(suite.dispatcher, suite.kernel, suite.venue, 5, ELEMENTS))

    return found


def rows_beyond(x: torch.Tensor) -> int:
    return WRAPS // x[0].numel()


def writes_where_it_wraps(kernel):
    def mutated(*tensors, **keywords):
        found = kernel(*tensors, **keywords)
        y = found[0] if isinstance(found, tuple) else found
        reach = rows_beyond(y)
        if len(y) > reach:
            y[reach:] = 0
        return found

    return mutated


def reads_where_it_wraps(kernel):
    def mutated(x, *tensors, **keywords):
        rows = torch.arange(len(x)) % max(rows_beyond(x), 1) if len(x) else slice(None)
        return kernel(x[rows], *tensors, **keywords)

    return mutated


def sums_no_further(kernel):
    def mutated(grad, x, *more, **keywords):
        reach = rows_beyond(x)
        grads = kernel(grad, x, *more, **keywords)
        shared = kernel(grad[:reach], x[:reach], *(t[:reach] if len(t) == len(x) else t for t in more), **keywords)
        return (grads[0], *shared[1:])

    return mutated


@pytest.mark.parametrize("kernel", ["reference.add_rms_norm", "reference.quantize_fp8"])
def test_what_is_right_passes(results, kernel):
    found = results(kernel)
    assert {result.status for result in found} <= {"passed", "skipped"}
    assert [result for result in found if result.aspect == "forward"]


@pytest.mark.parametrize("mutant", [writes_where_it_wraps, reads_where_it_wraps])
@pytest.mark.parametrize("kernel", ["reference.rms_norm", "reference.quantize_mxfp8"])
def test_an_index_that_wraps_around_is_found_in_rows(results, kernel, mutant):
    wrong = [result for result in results(kernel, forward=mutant) if result.status == "failed"]
    assert {result.aspect for result in wrong} >= {"forward"}
    assert wrong[0].detail.startswith("repetition ")
    assert "repetition 0 of" not in wrong[0].detail


def test_an_index_that_wraps_around_is_found_in_a_table(results):
    def reads(kernel):
        def mutated(weight, indices, *more, **keywords):
            return kernel(weight, indices % rows_beyond(weight), *more, **keywords)

        return mutated

    wrong = [r for r in results("reference.embedding_bag", forward=reads) if r.status == "failed"]
    # 2**21 elements are no multiple of the part's, so that another row is read
    assert [result.aspect for result in wrong] == ["forward"]


def test_a_sum_over_some_of_the_rows_is_found(results):
    wrong = [r for r in results("reference.rms_norm", backward=sums_no_further) if r.status == "failed"]
    assert [result.aspect for result in wrong] == ["backward"]


def test_sums_over_what_is_repeated_are_left_out_with_the_reason(results, monkeypatch):
    of_classes = [r for r in huge.repetitions(contract("linear_cross_entropy"), ELEMENTS) if r.dimension == "V"]
    monkeypatch.setattr(huge, "repetitions", lambda *_: of_classes)
    assert [(r.status, r.detail) for r in results("reference.linear_cross_entropy")] == [
        ("skipped", "for two repetitions the op gives something else than twice what it gives for one")
    ]


def test_the_whole_has_more_elements_than_asked_for():
    for repetition in huge.repetitions(contract("add_rms_norm")):
        rows = repetition.times * huge.PART
        assert rows * repetition.whole.dims["N"] > huge.ELEMENTS
        assert (rows - huge.PART) * repetition.whole.dims["N"] <= huge.ELEMENTS
        assert repetition.whole.leading == (rows,)
