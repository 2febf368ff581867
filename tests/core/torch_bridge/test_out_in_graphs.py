"""``out=``, indices and tensors without memory in compiled graphs: what eager calls refuse is refused there too."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from portakernel import explain, ops
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.tensors.layout import overlaps_itself


@pytest.fixture(autouse=True)
def _fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, True])
def test_out_is_written_whatever_the_sizes_are(dynamic):
    weight = torch.randn(16)

    @torch.compile(fullgraph=True, dynamic=dynamic, backend="aot_eager")
    def step(x, whole):
        return ops.rms_norm(x, weight, out=whole[:, :16])

    for rows in (8, 9, 17):
        x, whole = torch.randn(rows, 16), torch.zeros(rows, 20)
        step(x, whole)
        torch.testing.assert_close(whole[:, :16], ops.rms_norm(x, weight))
        assert not whole[:, 16:].any()


@pytest.mark.parametrize("dynamic", [None, True])
def test_out_may_be_the_argument_whatever_the_sizes_are(dynamic):
    weight = torch.randn(16)
    step = torch.compile(lambda x: ops.rms_norm(x, weight, out=x), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (8, 9, 17):
        x = torch.randn(rows, 16)
        want = ops.rms_norm(x, weight)
        step(x)
        torch.testing.assert_close(x, want)


def test_one_tensor_for_two_results_is_refused_as_in_eager_calls():
    weight = torch.randn(16)

    def twice(x, residual):
        return ops.add_rms_norm(x, residual, weight, out=(x, x))

    for call in (twice, torch.compile(twice, backend="aot_eager")):
        x, residual = torch.randn(4, 16), torch.randn(4, 16)
        before = x.clone()
        with pytest.raises(ArgumentValueError, match=r"^add_rms_norm: two tensors of out share memory$"):
            call(x, residual)
        assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("shape", "stride", "overlaps"),
    [
        ((4, 3), (1, 4), False),
        ((4, 3), (0, 1), True),
        ((3, 4), (2, 1), True),
        ((3, 4), (4, 1), False),
        ((2, 3, 2), (1, 4, 2), False),
        ((2, 3, 2), (1, 3, 2), True),
        ((1, 3), (0, 1), False),
        ((0, 3), (0, 1), False),
        ((3,), (0,), True),
    ],
)
def test_a_tensor_overlaps_itself_where_two_elements_may_share_memory(shape, stride, overlaps):
    assert overlaps_itself(torch.zeros(64).as_strided(shape, stride)) == overlaps


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("position", [-1, 4])
def test_a_position_outside_is_named_in_a_graph_on_the_cpu_as_in_eager_calls(position, backend):
    q, cos, sin = torch.randn(1, 3, 2, 8), torch.randn(4, 4), torch.randn(4, 4)
    positions = torch.tensor([[0, 1, position]])

    def turn(q, cos, sin, positions):
        return ops.rotary_embedding(q, q, cos, sin, positions)

    text = f"rotary_embedding: positions holds {position}, which is not in [0, L) with L = 4"
    for call in (turn, torch.compile(turn, fullgraph=True, backend=backend)):
        with pytest.raises(IndexOutOfRangeError, match=f"^{re.escape(text)}$"):
            call(q, cos, sin, positions)


def test_the_form_says_that_indices_are_looked_at():
    q, cos, sin = torch.randn(1, 3, 2, 8), torch.randn(3, 4), torch.randn(3, 4)
    positions = torch.tensor([[0, 1, 2]])
    assert explain("rotary_embedding", q, q, cos, sin, compiled=True).form == "inline"
    assert explain("rotary_embedding", q, q, cos, sin, positions, compiled=True).form == "call"


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_without_memory_need_no_fast_kernel(compiled):
    def norm(x, weight):
        return ops.rms_norm(x, weight)

    call = torch.compile(norm, fullgraph=True, backend="aot_eager") if compiled else norm
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = call(torch.empty(8, 64, device="meta"), torch.empty(64, device="meta"))
    assert (found.shape, found.device.type) == ((8, 64), "meta")


def test_a_call_of_nothing_warns_of_no_slow_kernel():
    q = torch.randn(2, 0, 4, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ops.attention(q, q, q).shape == q.shape
