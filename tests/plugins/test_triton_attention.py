"""What the conformance kit does not see of ``attention`` in Triton: blocks, parts of keys, packed heads, launches."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from torch import Tensor

import portakernel
from portakernel.authoring.triton import Processor, launch, pretending
from portakernel.references import attention as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.attention import scores, tangents
from portakernel_plugins.triton.attention.backward import backward
from portakernel_plugins.triton.attention.forward import attention
from portakernel_plugins.triton.attention.head_parts import parts_of
from portakernel_plugins.triton.launching.configurations import entries

PLAIN: dict[str, Any] = {"causal": False, "scale": None, "window": (-1, -1), "softcap": 0.0}
ALL = (True,) * 6


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(
    queries: int, keys: int, heads: int = 2, key_heads: int = 1, batches: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    kept = (batches, keys, key_heads, 16)
    return draw(batches, queries, heads, 16), draw(*kept, seed=1), draw(*kept, seed=2)


def forward(*tensors: Tensor, alibi_slopes=None, bias=None, sinks=None, **values: Any) -> tuple[Tensor, Tensor]:
    features = {"alibi_slopes": alibi_slopes, "bias": bias, "sinks": sinks}
    y, lse = attention(*tensors, **features, **{**PLAIN, **values}, return_lse=True)
    return y, lse


def exactly(*tensors: Tensor, alibi_slopes=None, bias=None, sinks=None, **values: Any) -> tuple[Tensor, Tensor]:
    features = {"alibi_slopes": alibi_slopes, "bias": bias, "sinks": sinks}
    wide = {name: None if x is None else x.double() for name, x in features.items()}
    return reference.forward(*(x.double() for x in tensors), **wide, **{**PLAIN, **values}, return_lse=True)


def assert_near(found, exact) -> None:
    for one, want in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), want, rtol=2e-5, atol=1e-5)


def gradients(q, k, v, alibi_slopes=None, bias=None, sinks=None, needs=ALL, grad=None, **values: Any):
    y, lse = forward(q, k, v, alibi_slopes=alibi_slopes, bias=bias, sinks=sinks, **values)
    grad = draw(*y.shape, seed=7) if grad is None else grad
    given = (q, k, v, alibi_slopes, bias, sinks)
    found = backward(grad, *given, y, lse, **{**PLAIN, **values}, return_lse=False, needs=needs)
    wide = (None if x is None else x.double() for x in given)
    exact = reference.backward(grad.double(), *wide, y.double(), lse.double(), **{**PLAIN, **values}, needs=needs)
    return found, exact


# a window with whole blocks inside; queries that see nothing; a window without a left edge; a causal mask alone
@pytest.mark.parametrize(
    ("queries", "keys", "values"),
    [
        (100, 170, {"window": (75, 45)}),
        (110, 90, {"window": (70, -1), "causal": True}),
        (40, 150, {"window": (-1, 20)}),
        (90, 200, {"causal": True}),
    ],
)
def test_blocks_inside_a_window_and_at_its_edges_are_all_in_the_results(queries, keys, values):
    q, k, v = inputs(queries, keys)
    assert_near(forward(q, k, v, **values), exactly(q, k, v, **values))
    found, exact = gradients(q, k, v, **values)
    assert_near(found[:3], exact[:3])


def test_a_long_sequence_has_tiles_of_its_own():
    q, k, v = inputs(520, 33, heads=1)
    assert_near(forward(q, k, v, causal=True), exactly(q, k, v, causal=True))


def test_a_window_that_hides_nothing_is_none():
    q, k, _ = inputs(5, 9)
    for window in ((8, 4), (2**40, 2**40), (-1, -1)):
        how = scores.scoring(q, k, False, None, window, 0.0)
        assert (how.left, how.right) == (-1, -1)
    how = scores.scoring(q, k, False, None, (7, 3), 0.0)
    assert (how.left, how.right) == (7, 3)
    assert scores.scoring(q[:, :1], k, True, None, (-1, -1), 0.0).right == -1


# nine blocks of 32 keys make four parts of three blocks: the last one is empty
@pytest.mark.parametrize("values", [{}, {"causal": True}, {"window": (200, 0)}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("sunk", [False, True])
def test_parts_of_the_keys_are_merged_to_the_same_results(values, sunk, launched):
    q, k, v = inputs(3, 288, heads=3)
    sinks = draw(3) if sunk else None
    with pretending(Processor("interpreter", 16, 32), lambda *_: None):
        found = forward(q, k, v, sinks=sinks, **values)
        again = forward(q, k, v, sinks=sinks, **values)
    assert launched == ["_forward", "_merge"] * 2
    assert_near(found, exactly(q, k, v, sinks=sinks, **values))
    assert all(one.equal(other) for one, other in zip(found, again, strict=True))


def test_queries_that_see_no_key_of_any_part_are_zero():
    q, k, v = inputs(2, 256)
    bias = draw(1, 2, 2, 256)
    bias[0, 1, 0] = -math.inf
    with pretending(Processor("interpreter", 8, 32), lambda *_: None):
        y, lse = forward(q, k, v, bias=bias)
    assert not y[0, 0, 1].any()
    assert lse[0, 1, 0] == -math.inf
    assert_near((y, lse), exactly(q, k, v, bias=bias))


def test_heads_that_share_a_tile_leave_the_memory_beside_theirs_alone():
    q, k, v = inputs(3, 20, heads=10, key_heads=2, batches=2)
    around = torch.full((2, 4, 11, 17), 5.0)
    out = around[:, :3, :10, :16]
    attention(q, k, v, alibi_slopes=draw(10), bias=None, sinks=None, **PLAIN, return_lse=False, out=out)
    assert_near((out,), exactly(q, k, v, alibi_slopes=draw(10))[:1])
    assert (around[:, 3] == 5.0).all()
    assert (around[:, :, 10] == 5.0).all()
    assert (around[..., 16] == 5.0).all()


@triton.jit
def _tangents(x, y):
    lane = tl.arange(0, 2048)
    tl.store(y + lane, tangents._exact(tl.load(x + lane)))


def test_the_softcaps_tangent_is_exact_near_zero_and_saturates():
    x = torch.cat([torch.logspace(-30, 3, 2047), torch.tensor([3.0e38])])
    y = torch.empty_like(x)
    launch(_tangents, (1, 1), x, y)
    torch.testing.assert_close(y.double(), x.double().tanh(), rtol=5e-7, atol=0.0)
    assert y[-1] == 1.0


def test_small_tangents_are_a_polynomial():
    *_, one = coefficients = [struct.unpack(">f", bytes.fromhex(c[2:]))[0] for c in tangents.COEFFICIENTS]
    x = torch.linspace(-0.5, 0.5, 10001)
    found = torch.zeros_like(x)
    for coefficient in coefficients:
        found = found * x * x + coefficient
    torch.testing.assert_close((found * x).double(), x.double().tanh(), rtol=0.0, atol=2.0**-22)
    assert one <= 1.0


@triton.jit
def _weights(shift, y):
    tl.store(y, scores.weights_of(tl.load(shift) + 256.0, tl.load(shift)))


def test_no_weight_is_more_than_one_where_lse_is_as_coarse_as_its_scores():
    # as a GPU finds scores of 1e9 when it rounds a product and a sum once, and forward did twice
    shift, y = torch.tensor([-1e9]), torch.empty(1)
    launch(_weights, (1, 1), shift, y)
    assert y.item() == 1.0


@pytest.mark.parametrize("softcap", [1e-3, 5.0, 50.0])
def test_scores_far_beyond_the_softcap_are_the_softcap(softcap):
    q, k, v = inputs(4, 40)
    q = q * 1e4
    found = forward(q, k, v, softcap=softcap)
    assert_near(found, exactly(q, k, v, softcap=softcap))
    grads, _ = gradients(q, k, v, softcap=softcap)
    assert all(grad.isfinite().all() for grad in grads[:3])


def test_a_query_masked_by_its_bias_has_gradients_of_zero():
    q, k, v = inputs(40, 70)
    bias = draw(1, 2, 40, 70)
    bias[0, 0, 3] = -math.inf
    bias[0, 1, :, :35] = -math.inf
    found, exact = gradients(q, k, v, bias=bias)
    assert not found[0][0, 3, 0].any()
    assert not found[4][0, 0, 3].any()
    assert_near((*found[:3], found[4]), (*exact[:3], exact[4]))


@pytest.mark.parametrize("low", [-1e9, -3e30, torch.finfo(torch.float32).min])
def test_a_query_whose_whole_bias_is_low_has_finite_gradients(low):
    q, k, v = inputs(20, 33)
    bias = torch.full((1, 2, 20, 33), low) * torch.linspace(0.9, 1.0, 20)[:, None]
    found, _ = gradients(q, k, v, bias=bias)
    assert all(grad.isfinite().all() for grad in (*found[:3], found[4]))
    grad = torch.zeros(1, 20, 2, 16)
    found, _ = gradients(q, k, v, bias=bias, grad=grad)
    assert not any(one.any() for one in (*found[:3], found[4]))


def test_of_a_bias_what_the_window_hides_has_a_gradient_of_zero():
    q, k, v = inputs(70, 100)
    bias = draw(1, 1, 70, 100).expand(1, 2, 70, 100)
    found, exact = gradients(q, k, v, bias=bias, window=(9, 5))
    assert_near((found[4],), (exact[4],))
    assert found[4].shape == (1, 2, 70, 100)


def test_of_gradients_only_those_that_are_asked_for_are_computed(launched):
    q, k, v = inputs(5, 7)
    bias, sinks = draw(1, 2, 5, 7), draw(2)
    asked = {
        (0,): ["_row_terms", "_gradient_of_queries"],
        (1,): ["_row_terms", "_gradient_of_keys"],
        (2,): ["_row_terms", "_gradient_of_keys"],
        (4,): ["_row_terms", "_gradient_of_queries"],
        (5,): ["_row_terms"],
        (1, 2): ["_row_terms", "_gradient_of_keys"],
    }
    for wanted, kernels in asked.items():
        launched.clear()
        needs = tuple(place in wanted for place in range(6))
        found, exact = gradients(q, k, v, bias=bias, sinks=sinks, needs=needs)
        assert launched[1:] == kernels
        assert [place for place in range(6) if found[place] is not None] == list(wanted)
        assert_near([found[place] for place in wanted], [exact[place] for place in wanted])


@pytest.mark.parametrize(
    ("width", "parts"),
    [(1, (16, 0)), (16, (16, 0)), (17, (32, 0)), (40, (32, 16)), (72, (64, 16)), (80, (64, 16)), (96, (64, 32)),
     (100, (128, 0)), (128, (128, 0)), (160, (128, 32)), (192, (128, 64)), (200, (256, 0)), (256, (256, 0))],
)  # fmt: skip
def test_heads_are_two_blocks_where_one_would_be_mostly_padding(width, parts):
    assert parts_of(width) == parts


def test_blocks_are_what_matrix_units_take():
    for kernel, rows in entries().items():
        if kernel.startswith("attention.") and "BLOCK_M" in rows[0].get("options", {}):
            for row in rows:
                for name in ("BLOCK_M", "BLOCK_N"):
                    size = row["options"][name]
                    assert size >= 16, (kernel, row)
                    assert size & (size - 1) == 0, (kernel, row)


@pytest.mark.parametrize("target", ["nvidia:sm_80", "nvidia:sm_90", "nvidia:sm_120", "amd:gfx942", "amd:gfx1201"])
@pytest.mark.parametrize("feature", ["softcap", "sinks", "alibi_slopes"])
def test_what_no_library_has_can_be_asked_for_and_stands_before_the_reference(target, feature):
    dtypes = {"q": "bfloat16", **({} if feature == "softcap" else {feature: "float32"})}
    values = {"softcap": 30.0} if feature == "softcap" else {}
    decision = portakernel.explain("attention", target=target, dtype=dtypes, **values)
    able = [one.kernel.name for one in decision.candidates if one.status != "rejected"]
    assert able.index("triton.attention") < able.index("reference.attention")
    with portakernel.use("triton.attention"):
        decision = portakernel.explain("attention", target=target, dtype=dtypes, **values)
    assert decision.chosen is not None
    assert decision.chosen.name == "triton.attention"


@pytest.mark.parametrize("target", ["nvidia:sm_80", "nvidia:sm_90", "amd:gfx942"])
def test_plain_calls_are_still_the_libraries(target):
    shape = {"q": (4, 384, 8, 64), "k": (4, 384, 2, 64), "v": (4, 384, 2, 64)}
    decision = portakernel.explain("attention", target=target, dtype="bfloat16", shape=shape, causal=True)
    assert decision.chosen is not None
    assert decision.chosen.name.startswith("torch.")
    assert decision.chosen.name != "torch.attention_math"


@pytest.mark.parametrize(
    ("queries", "heads", "width", "causal", "name"),
    [
        (256, 33, 64, True, "torch.attention_cudnn"),
        (257, 33, 64, True, "triton.attention"),
        (257, 33, 128, True, "triton.attention_hopper"),
        (512, 16, 64, True, "triton.attention"),
        (512, 17, 64, True, "torch.attention_cudnn"),
        (257, 16, 64, False, "triton.attention"),
        (257, 16, 128, False, "triton.attention"),
        (512, 16, 64, False, "triton.attention"),
        (512, 17, 64, False, "torch.attention_cudnn"),
        (641, 16, 64, False, "triton.attention"),
        (641, 17, 64, False, "torch.attention_cudnn"),
        (1537, 16, 64, False, "torch.attention_cudnn"),
        (384, 25, 128, False, "triton.attention"),
        (385, 25, 128, False, "torch.attention_cudnn"),
        (197, 12, 128, True, "triton.attention"),
        (197, 13, 128, True, "torch.attention_cudnn"),
        (1024, 8, 128, True, "triton.attention"),
        (1024, 9, 128, True, "triton.attention_hopper"),
        (4096, 2, 128, True, "triton.attention"),
        (2048, 15, 64, True, "torch.attention_cudnn"),
        (2048, 16, 64, True, "triton.attention_hopper"),
    ],
)
def test_small_tiles_go_first_where_all_run_at_once(queries, heads, width, causal, name):
    shape = dict.fromkeys("qkv", (1, queries, heads, width))
    decision = portakernel.explain("attention", target="nvidia:sm_90", dtype="bfloat16", shape=shape, causal=causal)
    assert decision.chosen is not None
    assert decision.chosen.name == name
