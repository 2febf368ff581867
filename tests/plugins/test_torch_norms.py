"""PyTorch's norms: which devices they are claimed on, and what they do that the conformance kit sees on GPUs alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch._decomp.decompositions import _fused_rms_norm_backward
from torch._subclasses.fake_tensor import FakeTensorMode

import portakernel
from portakernel.references import add_rms_norm as reference
from portakernel_plugins.torch.norms import add_rms_norm, layer_norm, rms_norm

EPS = 1e-5


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def status(op: str, kernel: str, target: str, dtype: str, **more: object) -> str:
    return portakernel.explain(op, target=target, dtype=dtype, **more).candidate(f"torch.{kernel}").status


SERVED = [
    ("rms_norm", "rms_norm", "nvidia:sm_90", "bfloat16", True),
    ("rms_norm", "rms_norm", "intel:pvc", "bfloat16", False),
    ("rms_norm", "rms_norm_xpu", "intel:pvc", "bfloat16", True),
    ("rms_norm", "rms_norm_mps", "apple:m3", "float32", True),
    ("rms_norm", "rms_norm_mps", "apple:m3", "float16", False),  # rounded before the weight
    ("add_rms_norm", "add_rms_norm", "amd:gfx942", "float16", True),
    ("add_rms_norm", "add_rms_norm_xpu", "intel:pvc", "float32", True),
    ("layer_norm", "layer_norm", "nvidia:sm_90", "bfloat16", True),
    ("layer_norm", "layer_norm", "apple:m3", "float32", False),  # small variances are zero there
    ("layer_norm", "layer_norm_xpu", "intel:pvc", "float32", True),
    ("add_layer_norm", "add_layer_norm", "nvidia:sm_90", "float16", True),
    ("add", "add", "apple:m3", "float16", True),
    ("add", "add", "intel:pvc", "bfloat16", True),
]


@pytest.mark.parametrize(("op", "kernel", "target", "dtype", "served"), SERVED)
def test_each_device_is_served_by_the_variant_that_is_right_there(op, kernel, target, dtype, served):
    assert (status(op, kernel, target, dtype) != "rejected") == served


@pytest.mark.parametrize(
    ("op", "kernel", "trains"),
    [
        ("rms_norm", "rms_norm_xpu", True),
        ("rms_norm", "rms_norm_mps", False),
        ("layer_norm", "layer_norm_xpu", False),
        ("add_layer_norm", "add_layer_norm_xpu", False),
    ],
)
def test_what_saves_nothing_that_backward_can_read_is_for_inference(op, kernel, trains):
    target = "apple:m3" if kernel.endswith("mps") else "intel:pvc"
    decision = portakernel.explain(op, target=target, dtype="float32", phase="training")
    assert (decision.candidate(f"torch.{kernel}").status != "rejected") == trains


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layer_norm_on_cpus_saves_float32_for_16_bit_arguments(dtype):
    x, weight, bias = draw(5, 40, dtype=dtype), draw(40, dtype=dtype, seed=1), draw(40, dtype=dtype, seed=2)
    y, mean, rstd = layer_norm.layer_norm_cpu(x, weight, bias, eps=EPS, save=True)
    assert (y.dtype, mean.dtype, rstd.dtype) == (dtype, torch.float32, torch.float32)
    # the operator itself saves what it is given parameters in
    assert torch.ops.aten.native_layer_norm(x, (40,), weight, bias, EPS)[1].dtype == dtype


def test_gradients_of_shared_parameters_on_cpus_are_sums_in_float32():
    rows = 300
    x, weight = draw(rows, 8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16)
    _, mean, rstd = layer_norm.layer_norm_cpu(x, weight, eps=EPS, save=True)
    ones = torch.ones_like(x)
    *_, grad_bias = layer_norm.backward_cpu(ones, x, weight, mean, rstd, eps=EPS, needs=(True, True, True))
    assert grad_bias.tolist() == [300.0] * 8  # in bfloat16 the sum would stop at 256


@pytest.fixture
def decomposed(monkeypatch):
    """The backward that only GPUs have, as PyTorch itself writes it out."""

    def backward(*arguments):
        return tuple(grad if grad is None else grad.contiguous() for grad in _fused_rms_norm_backward(*arguments))

    monkeypatch.setattr(rms_norm, "_backward", backward)


@pytest.mark.usefixtures("decomposed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("absent", [None, "grad_y", "grad_summed"])
def test_add_rms_norm_adds_the_sum_s_own_gradient_before_it_rounds(dtype, absent):
    x, residual, weight = (draw(*shape, dtype=dtype, seed=i) for i, shape in enumerate([(6, 40), (6, 40), (40,)]))
    _, summed, rstd = add_rms_norm.add_rms_norm(x, residual, weight, eps=EPS, save=True)
    grads = {name: draw(6, 40, dtype=dtype, seed=7 + i) for i, name in enumerate(("grad_y", "grad_summed"))}
    given = [None if name == absent else grad for name, grad in grads.items()]
    needs = (True, True, True)
    found = add_rms_norm.backward(*given, weight, summed, rstd, eps=EPS, needs=needs)
    wide = [None if grad is None else grad.double() for grad in given]
    exact = reference.backward(*wide, weight.double(), summed.double(), rstd.double(), eps=EPS, needs=needs)
    for gradient, want in zip(found, exact, strict=True):
        assert gradient.dtype == dtype
        # half a unit in the last place, at numbers that are not small beside the terms
        large = want.abs() > 0.5
        off = ((gradient.double() - want).abs() / want.abs())[large]
        assert off.numel() == 0 or off.max() <= 0.51 * torch.finfo(dtype).eps + 4e-6
    assert torch.equal(found[0], found[1])
    assert found[0].data_ptr() != found[1].data_ptr()


@pytest.mark.usefixtures("decomposed")
@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_add_rms_norm_s_gradients_come_one_by_one(needs):
    x, weight = draw(3, 16), draw(16, seed=1)
    _, summed, rstd = add_rms_norm.add_rms_norm(x, x, weight, eps=EPS, save=True)
    found = add_rms_norm.backward(draw(3, 16, seed=2), draw(3, 16, seed=3), weight, summed, rstd, eps=EPS, needs=needs)
    assert tuple(gradient is not None for gradient in found) == needs


@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3))[1:])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_layer_norm_s_bias_is_not_differentiated_without_its_weight_on_gpus(needs, device, monkeypatch):
    """Of many short rows PyTorch's CUDA operator gives it no elements: what it is asked for, as no GPU is at hand."""
    asked: list[tuple[bool, ...]] = []

    def backward(grad: Tensor, *arguments: object) -> tuple[Tensor | None, ...]:
        asked.append(arguments[-1])
        return tuple(grad.new_empty(grad.shape[-1]) if wanted else None for wanted in arguments[-1])

    monkeypatch.setattr(layer_norm, "_backward", backward)
    with FakeTensorMode():
        grad, weight, mean = (torch.empty(shape, device=device) for shape in ((70000, 4), (4,), (70000,)))
        found = layer_norm.backward(grad, grad, weight, mean, mean, eps=EPS, needs=needs)
    assert tuple(gradient is not None for gradient in found) == needs
    assert asked == [(needs[0], needs[1] or (needs[2] and device == "cuda"), needs[2])]


def test_the_residual_may_be_overwritten_alone():
    x, residual, weight = draw(4, 24), draw(4, 24, seed=1), draw(24, seed=2)
    want = add_rms_norm.add_rms_norm(x, residual, weight, eps=EPS)
    y, over = torch.empty_like(x), residual.clone()
    found = add_rms_norm.add_rms_norm(x, over, weight, eps=EPS, out=(y, over))
    assert found[0] is y
    assert found[1] is over
    assert all(torch.equal(*pair) for pair in zip(found, want, strict=True))


@pytest.mark.parametrize("x", [draw(0, 12), draw(7, 24)[:, ::2]])
def test_metal_s_kernel_is_given_rows_without_gaps_and_never_none_of_them(x, monkeypatch):
    """What it cannot take: checked in front of the operator, as no Metal is at hand."""
    seen: list[Tensor] = []

    def forward(x: Tensor, *_: object) -> tuple[Tensor, None]:
        seen.append(x)
        return x.clone(), None

    monkeypatch.setattr(rms_norm, "_forward", forward)
    y = rms_norm.rms_norm_mps(x, draw(12), eps=EPS)
    assert y.shape == x.shape
    assert [tensor.is_contiguous() for tensor in seen] == [True] * bool(x.numel())


def test_third_derivatives_of_a_recorded_layer_norm_are_those_of_the_formula():
    source = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=source).requires_grad_() for shape in ((3, 5), (5,), (5,))]

    def third(kernel):
        y = portakernel.ops.layer_norm(*tensors, kernel=kernel)
        for _ in range(2):
            (y,) = torch.autograd.grad(y.sin().sum(), tensors[:1], create_graph=True)
        return torch.autograd.grad(y.sin().sum(), tensors[:2])

    for found, wanted in zip(third("torch.layer_norm_recorded"), third("reference"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4 * wanted.abs().max().item())


@pytest.mark.parametrize(
    ("rows", "columns", "name"),
    [
        (512, 2048, "torch.rms_norm_recorded"),
        (2048, 1024, "torch.rms_norm_recorded"),
        (128, 8192, "triton.rms_norm"),  # whose layer's weights alone take longer to read than the host needs
        (4096, 1024, "triton.rms_norm"),
    ],
)
def test_a_gradient_is_recorded_where_the_host_is_what_a_layer_waits_for(rows, columns, name):
    asked = {"target": "nvidia:sm_90", "dtype": "bfloat16", "shape": {"x": (rows, columns)}}
    assert portakernel.explain("rms_norm", phase="training", **asked).chosen.name == name
