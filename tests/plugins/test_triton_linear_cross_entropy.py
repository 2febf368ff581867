"""What the conformance kit does not see of ``linear_cross_entropy`` in Triton: tiles, parts, memory, launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from portakernel.authoring.triton import Processor, pretending
from portakernel.references import linear_cross_entropy as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.losses import linear_cross_entropy as forward_module
from portakernel_plugins.triton.losses import linear_cross_entropy_backward as backward_module

K = 40
# Tiles of 128 classes, interpreted: whole ones, and one that ends early.
WHOLE, BROKEN = 512, 700

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:])
smoothings = pytest.mark.parametrize("smoothing", [0.0, 0.1])


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def forward(
    x: Tensor, weight: Tensor, target: Tensor, *, ignore: int = -100, smoothing: float = 0.0
) -> tuple[Tensor, ...]:
    with interpreting():
        found = forward_module.linear_cross_entropy(
            x, weight, target, ignore_index=ignore, label_smoothing=smoothing, save=True
        )
    assert isinstance(found, tuple)
    return found


def backward(
    grad_loss: Tensor, x: Tensor, weight: Tensor, target: Tensor, *, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Both gradients, with the exact lse."""
    lse = (x.double() @ weight.double().T).logsumexp(-1).float()
    with interpreting():
        grad_x, grad_weight, none = backward_module.backward(
            grad_loss, x, weight, target, lse, ignore_index=-100, label_smoothing=smoothing
        )
    assert none is None
    assert grad_x is not None
    assert grad_weight is not None
    return grad_x, grad_weight


def exact_gradients(
    grad_loss: Tensor, x: Tensor, weight: Tensor, target: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, ...]:
    x, weight = (tensor.double().detach().requires_grad_() for tensor in (x, weight))
    loss = torch.nn.functional.cross_entropy(x @ weight.T, target, reduction="none", label_smoothing=smoothing)
    return torch.autograd.grad(loss, (x, weight), grad_loss.double())


def assert_near(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> None:
    for gradient, want in zip(found, exact, strict=True):
        rounded = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}[gradient.dtype]
        torch.testing.assert_close(gradient.double(), want, rtol=rounded, atol=rounded * want.abs().max().item())


def in_parts_of(monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    real = backward_module.class_parts
    monkeypatch.setattr(backward_module, "_FEWEST_CLASSES", classes)
    monkeypatch.setattr(backward_module, "class_parts", lambda rows, v, how: real(rows, v, replace(how, elements=0)))


def by_descriptors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """From now on operands are described where their strides allow it; returns how they are read, as it happens."""
    seen: list[tuple[str, str]] = []
    for module in (forward_module, backward_module):
        real = module.launch_tiles

        def described(kernel, how, *args, real=real, **meta):
            real(kernel, replace(how, options={**how.options, "DESCRIPTORS": True}), *args, **meta)

        monkeypatch.setattr(module, "launch_tiles", described)
    from portakernel_plugins.triton.matrix import products

    launched = products.launch

    def watched(kernel, grid, *args, **meta):
        seen.append((meta["FORM_A"], meta["FORM_B"]))
        launched(kernel, grid, *args, **meta)

    monkeypatch.setattr(products, "launch", watched)
    return seen


@dtypes
@smoothings
@pytest.mark.parametrize("v", [WHOLE, BROKEN])
def test_rows_of_many_tiles_have_the_loss_of_the_formula(v, dtype, smoothing):
    x, weight, target = draw(3, K, dtype=dtype), draw(v, K, dtype=dtype, seed=1), torch.tensor([v - 1, -100, 128])
    loss, lse = forward(x, weight, target, smoothing=smoothing)
    exact, exact_lse = reference.forward(x.double(), weight.double(), target, label_smoothing=smoothing, save=True)
    torch.testing.assert_close(loss.double(), exact, rtol=2e-6, atol=0)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=2e-6, atol=0)


def test_more_tiles_than_are_added_up_at_once_are_all_in_the_sum():
    rows, parts = (
        configuration("linear_cross_entropy.losses", torch.device("cpu"), 64).options[n] for n in ("ROWS", "PARTS")
    )
    v = 128 * (parts + 1) + 5
    x, weight, target = draw(rows + 1, 4), draw(v, 4, seed=1), torch.arange(rows + 1) + v - rows - 1
    loss, lse = forward(x, weight, target)
    exact, exact_lse = reference.forward(x.double(), weight.double(), target, save=True)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-6, atol=0)


def test_a_maximum_in_the_last_tile_outweighs_those_before():
    weight = torch.full((BROKEN, 1), -200.0)
    weight[-1], weight[5] = 300.0, 299.0
    loss, lse = forward(torch.ones(1, 1), weight, torch.tensor([5]))
    both = torch.logsumexp(torch.tensor([300.0, 299.0]), 0).item()
    assert loss.item() == pytest.approx(both - 299.0, rel=1e-6)
    assert lse.item() == pytest.approx(both, rel=1e-6)


@smoothings
def test_tiles_of_minus_infinity_add_nothing(smoothing):
    weight = torch.full((BROKEN, 1), float("-inf"))
    weight[-3:, 0] = torch.tensor([1.0, 2.0, 3.0])
    loss, lse = forward(torch.ones(1, 1), weight, torch.tensor([BROKEN - 1]), smoothing=smoothing)
    assert lse.item() == pytest.approx(torch.logsumexp(torch.tensor([1.0, 2.0, 3.0]), 0).item(), rel=1e-6)
    # the mean of the logits is -inf
    assert loss.item() == (float("inf") if smoothing else pytest.approx(lse.item() - 3.0, rel=1e-6))


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_a_class_of_nan_or_infinity_makes_the_loss_nan_and_leaves_other_rows(spoilt):
    x, weight, target = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), draw(BROKEN, 2), torch.tensor([3, 3])
    weight[400] = torch.tensor([spoilt, 0.0])
    loss, _ = forward(x[:1], weight, target[:1])
    assert loss.isnan().all()
    clean = draw(BROKEN, 2)
    loss, _ = forward(torch.cat([x[1:], x[:1] * spoilt]), clean, target)
    assert loss.isnan().tolist() == [False, True]


@dtypes
@smoothings
@pytest.mark.parametrize("v", [WHOLE, BROKEN])
def test_gradients_in_parts_are_those_of_the_formula(monkeypatch, v, dtype, smoothing):
    in_parts_of(monkeypatch, 256)
    x, weight, grad_loss = draw(9, K, dtype=dtype), draw(v, K, dtype=dtype, seed=1), draw(9, seed=2)
    target = torch.tensor([v - 1, -100, 128, 0, 255, 256, 511, 3, 3])
    found = backward(grad_loss, x, weight, target, smoothing=smoothing)
    assert_near(found, exact_gradients(grad_loss, x, weight, target, smoothing))


@dtypes
def test_how_much_memory_there_is_changes_no_bit(monkeypatch, dtype):
    given = draw(9, seed=2), draw(9, K, dtype=dtype), draw(BROKEN, K, dtype=dtype, seed=1), torch.arange(9)
    whole = backward(*given)
    for classes in (256, 512):
        with monkeypatch.context() as patch:
            in_parts_of(patch, classes)
            found = backward(*given)
        assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))


@dtypes
@pytest.mark.parametrize("v", [WHOLE, BROKEN])
def test_a_row_has_the_same_bits_at_any_place_in_any_batch(v, dtype):
    x, weight, target, grad_loss = draw(9, K, dtype=dtype), draw(v, K, dtype=dtype, seed=1), torch.arange(9), draw(9)
    together, (grad_x, _) = forward(x, weight, target), backward(grad_loss, x, weight, target)
    for rows in (slice(0, 1), slice(5, 6), slice(3, 8)):
        apart = forward(x[rows], weight, target[rows])
        assert all(torch.equal(one, all_[rows]) for one, all_ in zip(apart, together, strict=True))
        alone, _ = backward(grad_loss[rows], x[rows], weight, target[rows])
        assert torch.equal(alone, grad_x[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_tiles_by_descriptor_have_the_bits_of_tiles_by_pointer(monkeypatch, dtype):
    x, weight, target, grad_loss = (
        draw(9, K, dtype=dtype),
        draw(BROKEN, K, dtype=dtype, seed=1),
        torch.arange(9),
        draw(9),
    )
    in_parts_of(monkeypatch, 256)
    expected = (*forward(x, weight, target), *backward(grad_loss, x, weight, target))
    seen = by_descriptors(monkeypatch)
    found = (*forward(x, weight, target), *backward(grad_loss, x, weight, target))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    part = [("inner", "inner"), ("inner", "outer"), ("outer", "outer")]
    assert seen == [("inner", "inner"), *part, *part, *part]


LAYOUTS = {
    "contiguous": (lambda t: t, "inner"),
    "rows of a wider matrix": (lambda t: torch.cat([t, t], -1)[:, :K], "inner"),
    "transposed": (lambda t: t.T.contiguous().T, "outer"),
    "every second column": (lambda t: t.repeat_interleave(2, -1)[:, ::2], "pointers"),
    "rows that overlap": (lambda t: t[:1].expand(t.shape), "pointers"),
    "rows at odd addresses": (lambda t: torch.cat([t, t[:, :1]], -1)[:, :K], "pointers"),
    "one element in": (lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape), "pointers"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_can_be_described_is_and_the_rest_is_read_by_pointers(monkeypatch, layout):
    arranged, form = LAYOUTS[layout]
    x, weight = draw(16, K, dtype=torch.bfloat16), draw(48, K, dtype=torch.bfloat16, seed=1)
    target = torch.arange(16)
    seen = by_descriptors(monkeypatch)
    for given in ((arranged(x), weight), (x, arranged(weight))):
        loss, _ = forward(*given, target)
        exact = reference.forward(given[0].double(), given[1].double(), target)
        torch.testing.assert_close(loss.double(), exact, rtol=2e-6, atol=0)
    assert seen == [(form, "inner"), ("inner", form)]


def test_an_ignored_row_of_nan_has_no_loss_and_a_gradient_of_zeros():
    x, weight, target = draw(2, K), draw(BROKEN, K, seed=1), torch.tensor([3, -100])
    x[1] = float("nan")
    loss, lse = forward(x, weight, target)
    assert loss[1] == 0
    assert lse.isnan().tolist() == [False, True]
    grad_x, _ = backward(torch.ones(2), x, weight, target)
    assert torch.equal(grad_x[1], torch.zeros(K))
    assert grad_x[0].isfinite().all()


@pytest.mark.parametrize("ignore", [-(2**40), 2**40])
def test_an_ignored_class_beyond_32_bits_matches_no_narrow_target(ignore):
    x, weight, target = draw(2, K), draw(60, K, seed=1), torch.tensor([0, 5], dtype=torch.int32)
    loss, _ = forward(x, weight, target, ignore=ignore)
    torch.testing.assert_close(loss, reference.forward(x, weight, target))


def test_gradients_of_float16_consist_of_probabilities_that_float16_has_not():
    x, weight, target = (
        torch.full((64, 8), 2048.0).half(),
        torch.zeros(300, 8).half(),
        torch.zeros(64, dtype=torch.int64),
    )
    grad_loss = torch.full((64,), 1e-6)
    assert (grad_loss[0] / 300).half() == 0
    _, grad_weight = backward(grad_loss, x, weight, target)
    _, exact = exact_gradients(grad_loss, x, weight, target)
    torch.testing.assert_close(grad_weight.double(), exact, rtol=2**-9, atol=0)


@pytest.mark.parametrize(("size", "stride"), [(2, 2**31 + 8), (34, 2**26 + 8)], ids=["stride", "offset"])
def test_rows_and_classes_may_lie_further_apart_than_32_bits_reach(size, stride):
    # of untouched memory there is none
    x, weight = (torch.empty_strided((size, K), (stride, 1), dtype=torch.bfloat16) for _ in range(2))
    x.copy_(draw(size, K))
    weight.copy_(draw(size, K, seed=1))
    target, grad_loss = torch.arange(size).flip(0), draw(size, seed=2)
    loss, _ = forward(x, weight, target)
    torch.testing.assert_close(loss, reference.forward(x.contiguous(), weight.contiguous(), target))
    exact = exact_gradients(grad_loss, x.contiguous(), weight.contiguous(), target)
    assert_near(backward(grad_loss, x, weight, target), exact)


# --- memory and launches, of sizes that are not there ----------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """Bytes of every tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if "empty" in func.__name__ or "zeros" in func.__name__:
            self.made.append(found.nbytes)
        return found


def launches(
    m: int, k: int, v: int, needs: tuple[bool, bool, bool]
) -> tuple[list[tuple[str, tuple[int, ...]]], list[int]]:
    """Of forward and backward on an H200's like, in bfloat16: each launch with its result's shape, and allocations."""
    found: list[tuple[str, tuple[int, ...]]] = []

    def note(kernel, grid, args, meta):
        out = {"_product": args[3], "_gradient": args[5]}.get(kernel.__name__, args[0])
        found.append((kernel.__name__, tuple(out.shape)))

    x, weight = (torch.empty(n, k, dtype=torch.bfloat16, device="meta") for n in (m, v))
    target, rows = torch.empty(m, dtype=torch.int64, device="meta"), torch.empty(m, device="meta")
    with pretending(Processor("sm_90", 132, 32), note), Allocations() as allocations:
        forward_module.linear_cross_entropy(x, weight, target, ignore_index=-100)
        backward_module.backward(rows, x, weight, target, rows, ignore_index=-100, needs=needs)
    return found, allocations.made


def test_logits_are_never_whole_in_memory():
    m, k, v = 8192, 4096, 128256
    found, made = launches(m, k, v, (True, True, False))
    products = [shape for name, shape in found if name == "_product"]
    assert products == [(m, k), (16128, k)] * 7 + [(m, k), (v - 7 * 16128, k)]
    grads = {m * k * 2, v * k * 2}
    # d of a part, the float32 sums that grad_x is carried in; forward's share of each tile of 256 classes
    assert sorted(set(made) - grads, reverse=True)[:3] == [m * 16128 * 2, m * k * 4, m * (v // 256) * 4]
    assert sum(made) - sum(grads) < m * v * 2 / 4


def test_many_rows_take_more_memory_rather_than_sums_too_short():
    m = 131072
    found, made = launches(m, 2048, 32000, (False, True, False))
    assert [shape for name, shape in found if name == "_product"] == [(4096, 2048)] * 7 + [(32000 - 7 * 4096, 2048)]
    assert m * 4096 * 2 in made


@pytest.mark.parametrize("v", [1, 24, 255, 4096, 4097, 32000, 50257, 128256])
@pytest.mark.parametrize("m", [1, 100, 8192, 100_000])
def test_parts_are_all_classes_in_order(m, v):
    how = configuration("linear_cross_entropy.d", torch.device("cpu"), 64)
    parts = list(backward_module.class_parts(m, v, how))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == v
    sizes = {part.stop - part.start for part in parts[:-1]}
    assert len(sizes) <= 1
    assert all(size % 256 == 0 for size in sizes)
    assert m * (parts[0].stop - 256) <= max(how.elements, m * 4096)


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False)])
def test_the_gradient_that_nobody_needs_is_not_computed(needs):
    found, _ = launches(64, 128, 1000, needs)
    wanted = (64, 128) if needs[0] else (1000, 128)
    assert [one for one in found if one[0] == "_product"] == [("_product", wanted)]


def test_where_nobody_needs_a_gradient_nothing_is_launched():
    found, _ = launches(64, 128, 1000, (False, False, False))
    assert [name for name, _ in found] == ["_forward", "_losses"]


@pytest.mark.parametrize(("arch", "form"), [("sm_90", "inner"), ("sm_80", "pointers"), ("gfx942", "pointers")])
def test_descriptors_are_for_hardware_that_copies_tiles(arch, form):
    seen: list[str] = []

    def note(kernel, grid, args, meta):
        if kernel.__name__ == "_forward":
            seen.append(meta["FORM_A"])

    x, target = (
        torch.empty(64, 64, dtype=torch.bfloat16, device="meta"),
        torch.empty(64, dtype=torch.int64, device="meta"),
    )
    with pretending(Processor(arch, 100, 32), note):
        forward_module.linear_cross_entropy(x, x, target, ignore_index=-100)
    assert seen == [form]


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_float32_products_are_cut_to_tf32_where_torch_allows_it(precision):
    seen: list[tuple[str, bool]] = []

    def note(kernel, grid, args, meta):
        if "PRECISION" in meta:
            seen.append((meta["PRECISION"], meta["WIDEN"]))

    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        for arch in ("sm_90", "gfx942"):
            for dtype in (torch.float32, torch.float16):
                x, rows = torch.empty(64, 64, dtype=dtype, device="meta"), torch.empty(64, device="meta")
                target = torch.empty(64, dtype=torch.int64, device="meta")
                with pretending(Processor(arch, 100, 32), note):
                    backward_module.backward(rows, x, x, target, rows, ignore_index=-100)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    # d of float16 inputs is float32, and has no more digits than TF32
    sm = [(precision, False)] * 3 + [("ieee", False), ("tf32", True), ("tf32", True)]
    assert seen == [*sm, *[("ieee", False)] * 3, ("ieee", False), ("ieee", True), ("ieee", True)]
