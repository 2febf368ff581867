"""What the conformance kit does not see of ``linear_act`` in Triton: tiles, copies, parts of sums, machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

import portakernel
from portakernel.authoring.triton import Processor, compiling, interpreting, pretending
from portakernel.references import linear_act as reference
from portakernel.words.target import Target
from portakernel_plugins.triton.matrix import linear_act as forward_module
from portakernel_plugins.triton.matrix import linear_act_backward as backward_module
from portakernel_plugins.triton.matrix import products, splits

# Interpreted, tiles have 64 rows and 64 columns, and up to 64 rows tiles of 32.
M, N, K = 130, 200, 72
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:])
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.5).to(dtype)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str = "none", **more) -> Tensor:
    with interpreting():
        found = forward_module.linear_act(x, weight, bias, activation=activation, **more)
    assert isinstance(found, Tensor)
    return found


def assert_near(found: Tensor, exact: Tensor) -> None:
    rounded = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}[found.dtype]
    torch.testing.assert_close(found.double(), exact, rtol=rounded, atol=rounded * exact.abs().max().item())


def read_as(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str, int]]:
    """How operands and the result are read and written, and how high tiles are, launch by launch."""
    seen: list[tuple[str, str, str, int]] = []
    launched = products.launch

    def watched(kernel, grid, *args, **meta):
        seen.append((meta["FORM_A"], meta["FORM_B"], meta["FORM_Y"], meta["BLOCK_M"]))
        launched(kernel, grid, *args, **meta)

    monkeypatch.setattr(products, "launch", watched)
    return seen


@dtypes
@activations
def test_tiles_side_by_side_are_the_formula_s(activation, dtype):
    x, weight, bias = draw(M, K, dtype=dtype), draw(N, K, dtype=dtype, seed=1), draw(N, dtype=dtype, seed=2)
    exact = reference.forward(x.double(), weight.double(), bias.double(), activation=activation)
    assert_near(forward(x, weight, bias, activation=activation), exact)


@pytest.mark.parametrize("rows", [3, M])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_the_preactivation_that_is_kept_is_that_of_the_result(rows, activation):
    x, weight, bias = draw(rows, K), draw(N, K, seed=1), draw(N, seed=2)
    with interpreting():
        y, z = forward_module.linear_act(x, weight, bias, activation=activation, save=True)
    assert torch.equal(z, forward(x, weight, bias))
    assert torch.equal(y, forward(x, weight, bias, activation=activation))


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_nothing_is_kept_where_the_result_tells_the_slope(activation):
    with interpreting():
        found = forward_module.linear_act(draw(3, K), draw(N, K), activation=activation, save=True)
    assert len(found) == 1


LAYOUTS = {
    "contiguous": (lambda t: t, "inner"),
    "rows of a wider matrix": (lambda t: torch.cat([t, t], -1)[:, :K], "inner"),
    "transposed": (lambda t: t.T.contiguous().T, "outer"),
    "every second column": (lambda t: t.repeat_interleave(2, -1)[:, ::2], "inner"),
    "rows that overlap": (lambda t: t[:1].expand(t.shape), "inner"),
    "rows at odd addresses": (lambda t: torch.cat([t, t[:, :1]], -1)[:, :K], "inner"),
    "one element in": (lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape), "inner"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [16, 144])
def test_what_cannot_be_described_is_copied_for_many_rows_and_read_by_pointers_for_few(monkeypatch, layout, rows):
    arranged, form = LAYOUTS[layout]
    x, weight = draw(rows, K), draw(48, K, seed=1)
    seen = read_as(monkeypatch)
    for given in ((arranged(x), weight), (x, arranged(weight))):
        assert_near(forward(*given), given[0].double() @ given[1].double().T)
    if rows == 144:
        assert seen == [(form, "inner", "inner", 64), ("inner", form, "inner", 64)]
    else:
        assert {forms[:3] for forms in seen} == {("pointers",) * 3}


@pytest.mark.parametrize("inners", [1, 7, 65, 71])
def test_terms_that_fill_no_16_bytes_are_followed_by_zeros(monkeypatch, inners):
    seen = read_as(monkeypatch)
    x, weight = draw(M, inners), draw(N, inners, seed=1)
    assert_near(forward(x, weight), x.double() @ weight.double().T)
    assert seen == [("inner", "inner", "inner", 64)]


@pytest.mark.parametrize("shape", [(M, 201, K), (1, 1, 1), (M, 1, 8), (65, 65, 0), (64, 64, 64), (1, N, K)])
def test_sizes_of_a_tile_of_one_and_of_none(shape):
    m, n, k = shape
    x, weight, bias = draw(m, k), draw(n, k, seed=1), draw(n, seed=2)
    assert_near(forward(x, weight, bias), x.double() @ weight.double().T + bias.double())


@pytest.mark.parametrize("programs", [3, 5, 64])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_few_rows_share_their_terms_among_programs_and_add_them_up_in_order(monkeypatch, rows, programs):
    real, counted = products.configuration, torch.zeros(16, dtype=torch.int32)
    monkeypatch.setattr(products, "configuration", lambda *given: replace(real(*given), programs=programs))
    monkeypatch.setattr(splits, "counters", lambda *_: counted)
    x, weight, bias = draw(rows, 600), draw(100, 600, seed=1), draw(100, seed=2)
    found = [forward(x, weight, bias, activation="gelu") for _ in range(2)]
    assert torch.equal(*found)
    assert not counted.any()
    assert_near(found[0], reference.forward(x.double(), weight.double(), bias.double(), activation="gelu"))


def test_an_infinite_part_of_a_sum_stays_infinite(monkeypatch):
    real = products.configuration
    monkeypatch.setattr(products, "configuration", lambda *given: replace(real(*given), programs=64))
    x, weight = torch.ones(2, 512).bfloat16(), torch.ones(64, 512).bfloat16()
    x[1, 500] = float("inf")  # of the last part, which another program may add up
    assert forward(x, weight)[:, 0].tolist() == [512, float("inf")]


def test_a_result_may_lie_anywhere():
    x, weight = draw(2, 9, K), draw(N, K, seed=1)
    expected = forward(x, weight, activation="silu")
    out = torch.full((9, 2, N, 2), 7.0, dtype=torch.bfloat16)
    into = out.permute(1, 0, 2, 3)[..., 0]
    assert forward(x, weight, activation="silu", out=into) is into
    assert torch.equal(into, expected)
    assert (out[..., 1] == 7).all()


def test_nan_and_infinity_reach_their_rows_alone():
    x, weight = draw(M, K), draw(N, K, seed=1).abs() + 0.1
    clean = forward(x, weight, activation="relu")
    x[3, 5], x[70, 6] = float("nan"), float("inf")
    y = forward(x, weight, activation="relu")
    assert y[3].isnan().all()
    assert (y[70] == float("inf")).all()
    others = [row for row in range(M) if row not in (3, 70)]
    assert torch.equal(y[others], clean[others])


@pytest.mark.parametrize(("size", "stride"), [(2, 2**31 + 8), (34, 2**26 + 8)], ids=["stride", "offset"])
def test_rows_and_columns_may_lie_further_apart_than_32_bits_reach(size, stride):
    # of untouched memory there is none
    x, weight = (torch.empty_strided((size, K), (stride, 1), dtype=torch.bfloat16) for _ in range(2))
    x.copy_(draw(size, K))
    weight.copy_(draw(size, K, seed=1))
    assert_near(forward(x, weight), x.contiguous().double() @ weight.contiguous().double().T)


# --- gradients -------------------------------------------------------------------------------------------------------


def gradients(
    grad_y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, activation: str, needs=(True, True, True)
) -> tuple[Tensor | None, ...]:
    with interpreting():
        y, *z = forward_module.linear_act(x, weight, bias, activation=activation, save=True)
        return backward_module.backward(grad_y, x, weight, y, *z, activation=activation, needs=needs)


def exact_gradients(grad_y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, ...]:
    wide = [tensor.double().detach().requires_grad_() for tensor in (x, weight, bias)]
    z = wide[0] @ wide[1].T + wide[2]
    functions = {"none": lambda z: z, "relu": torch.relu, "silu": torch.nn.functional.silu}
    functions["gelu"] = torch.nn.functional.gelu
    functions["gelu_tanh"] = lambda z: torch.nn.functional.gelu(z, approximate="tanh")
    return torch.autograd.grad(functions[activation](z), wide, grad_y.double())


@dtypes
@activations
def test_gradients_are_those_of_the_formula(activation, dtype):
    given = draw(M, 72, dtype=dtype, seed=3), draw(M, 40, dtype=dtype), draw(72, 40, dtype=dtype, seed=1)
    bias = draw(72, dtype=dtype, seed=2)
    found = gradients(*given, bias, activation)
    for gradient, exact in zip(found, exact_gradients(*given, bias, activation), strict=True):
        # the factor is rounded, and its sums are of 130 terms that nearly cancel
        scale = {torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}[dtype]
        torch.testing.assert_close(gradient.double(), exact, rtol=scale, atol=scale * exact.abs().max().item())


@activations
def test_gradients_that_nobody_needs_are_none_and_the_others_the_same(activation):
    given = draw(19, 24, seed=3), draw(19, 40), draw(24, 40, seed=1), draw(24, seed=2)
    together = gradients(*given, activation)
    for i in range(3):
        needs = tuple(place == i for place in range(3))
        alone = gradients(*given, activation, needs)
        assert [gradient is not None for gradient in alone] == list(needs)
        assert torch.equal(alone[i], together[i])


@pytest.mark.parametrize("most", [1, 3, 128])
def test_shares_of_rows_add_up_to_the_bias_s_gradient(monkeypatch, most):
    monkeypatch.setattr(backward_module, "_MOST_SHARES", most)
    rows = 16 * 7 + 5
    grad_y = draw(rows, 9, dtype=torch.float32)
    given = grad_y, torch.ones(rows, 1), torch.ones(9, 1), torch.zeros(9)
    *_, grad_bias = gradients(*given, "none")
    torch.testing.assert_close(grad_bias.double(), grad_y.double().sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 7), (5, 0, 7), (5, 7, 0)])
def test_gradients_of_nothing_are_zeros(m, n, k):
    found = gradients(draw(m, n), draw(m, k), draw(n, k), draw(n), "gelu")
    assert [tuple(gradient.shape) for gradient in found] == [(m, k), (n, k), (n,)]
    if m == 0 or n == 0:
        assert all((gradient == 0).all() for gradient in found)


def test_a_hidden_infinite_gradient_is_no_nan_and_an_overflown_preactivation_is_straight():
    x, weight, bias = torch.tensor([[1.0], [-1.0]]).half(), torch.tensor([[1.0]]).half(), torch.zeros(1).half()
    grad_y = torch.tensor([[2.0], [float("inf")]]).half()
    grad_x, *_ = gradients(grad_y, x, weight, bias, "relu")
    assert grad_x.flatten().tolist() == [2.0, 0.0]
    z = torch.tensor([[float("inf")], [float("-inf")]]).half()
    with interpreting():
        grad_x, *_ = backward_module.backward(grad_y[:1].expand(2, 1), x, weight, z, z, activation="gelu")
    assert grad_x.flatten().tolist() == [2.0, 0.0]


# --- launches and what is compiled for GPUs that are not here --------------------------------------------------------


def tiles(m: int, n: int, k: int) -> tuple[int, int, int]:
    """Programs and the tile's sizes on an H200's like."""
    found = []
    with pretending(Processor("sm_90", 132, 32), lambda kernel, grid, args, meta: found.append((grid[0], meta))):
        forward_module.linear_act(
            *(torch.empty(r, k, dtype=torch.bfloat16, device="meta") for r in (m, n)), activation="none"
        )
    ((programs, meta),) = found
    return programs, meta["BLOCK_M"], meta["BLOCK_N"]


def test_tiles_are_as_large_as_leaves_every_multiprocessor_one():
    assert tiles(8192, 14336, 4096) == (132, 128, 256)
    assert tiles(256, 4096, 4096) == (64, 128, 128)
    assert tiles(64, 14336, 4096) == (224, 64, 64)
    assert tiles(17, 4096, 14336) == (256, 64, 64)  # four programs for each of 64 tiles
    assert tiles(16, 4096, 14336) == (256, 16, 64)


@pytest.mark.parametrize(
    ("target", "instruction", "kib"),
    [("nvidia:sm_90", r"wgmma\.mma_async.*m64n256k16.*bf16", 227), ("amd:gfx942", "v_mfma_f32_16x16x16_bf16", 64)],
)
def test_main_tiles_spill_nothing_fit_the_chip_and_are_the_tensor_cores(target, instruction, kib):
    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    with compiling(Target(*target.split(":"))) as found:
        forward_module.linear_act(empty(8192, 4096), empty(14336, 4096), empty(14336), activation="gelu", save=True)
    (compiled,) = found
    assert re.search(instruction, compiled.assembly)
    assert compiled.spilled_bytes == 0
    assert 0 < compiled.shared_bytes <= kib * 1024


# --- routing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["amd:gfx90a", "amd:gfx942", "amd:gfx950", "amd:gfx1100", "amd:gfx1201"])
def test_amd_gpus_multiply_with_it_and_are_told_why(target):
    decision = portakernel.explain("linear_act", target=target, dtype="bfloat16")
    assert decision.chosen.name == "triton.linear_act"
    assert "before 40 of torch.linear_act_unfused" in str(decision)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_on_hopper_it_stands_behind_cublas_and_cutlass(activation):
    decision = portakernel.explain("linear_act", target="nvidia:sm_90", dtype="bfloat16", activation=activation)
    assert not decision.chosen.name.startswith("triton.")
