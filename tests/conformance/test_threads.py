"""The kit's cases run on one of torch's CPU threads, and leave their number as it was."""

from __future__ import annotations

import pytest
import torch

from portakernel_kit.conformance.threads import on_one_thread


@pytest.fixture(autouse=True)
def three():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_each_step_has_one_thread_and_whoever_takes_it_all():
    def steps():
        yield torch.get_num_threads()
        yield torch.get_num_threads()

    seen = [(step, torch.get_num_threads()) for step in on_one_thread(steps())]
    assert seen == [(1, 3), (1, 3)]
    assert torch.get_num_threads() == 3


def test_a_step_that_raises_leaves_the_threads_alone():
    def steps():
        yield 0
        raise RuntimeError("in a step")

    with pytest.raises(RuntimeError, match=r"^in a step$"):
        list(on_one_thread(steps()))
    assert torch.get_num_threads() == 3


def test_a_case_runs_on_one_thread(make_suite):
    seen = set()

    def watched(kernel):
        def run(*tensors, **keywords):
            seen.add(torch.get_num_threads())
            return kernel(*tensors, **keywords)

        return run

    suite = make_suite("torch.add", forward=watched)
    results = list(suite.run(suite.units()[0]))
    assert {result.status for result in results} == {"passed"}
    assert seen == {1}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_matrix_product_has_as_many_threads_in_threads_of_the_kit_as_in_the_first(make_suite, threads):
    torch.set_num_threads(threads)
    suite = make_suite("torch.linear_act")
    results = [result for unit in suite.units() if unit.kind == "repetition" for result in suite.run(unit)]
    assert {result.aspect for result in results if result.status == "passed"} == {"threads", "memory"}
