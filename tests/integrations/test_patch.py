"""``portakernel.patch`` serves a model's layers as torch would, says what became of each, and gives them back."""

from __future__ import annotations

import copy
import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cxx import needs_cxx
from torch import Tensor, nn

import portakernel
from portakernel.errors import ArgumentTypeError, ClientWarning
from portakernel.integrations.torch_nn import attention, layers

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class ScaledNorm(nn.LayerNorm):
    """Computes something else than its base."""

    def forward(self, input: Tensor) -> Tensor:
        return 3 * super().forward(input)


class Block(nn.Module):
    """Attention, norms and a softmax, as people write them."""

    def __init__(self, batch_first: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.before = nn.RMSNorm(16, dtype=dtype)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=batch_first, dtype=dtype)
        self.after = nn.LayerNorm(16, dtype=dtype)
        self.gate = nn.Softmax(-1)
        for name, weight in self.named_parameters():
            if "norm" in name or weight.dim() == 1:
                nn.init.normal_(weight, 1.0, 0.3)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        y = self.before(x)
        y, _ = self.attention(y, y, y, need_weights=False, attn_mask=mask, is_causal=causal)
        result: Tensor = self.gate(self.after(x + y))
        return result


def outcomes(patched: Any) -> dict[str, tuple[str, int]]:
    """Of each layer, by its path: what its calls came to, and how many."""
    return {row.layer.partition(" of ")[0]: (row.outcome, row.calls) for row in patched.report()}


def reason(patched: Any, path: str) -> str:
    return next(row.refused for row in patched.report() if row.layer.partition(" of ")[0] == path)


ROWS = ("before", "after", "gate")
# Of PyTorch's two kernels on the CPU the one that the op takes rounds the softmax's weights, the module's does not.
ROUNDS_WEIGHTS = "ignore:torch.nn's attention of Block:portakernel.errors.ClientWarning"
SERVED = dict.fromkeys(("before", "attention", "after", "gate"), ("served", 1))


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
def test_a_model_is_served_with_torch_s_numbers(batch_first: bool) -> None:
    model, x = Block(batch_first), torch.randn(3, 5, 16)
    wanted = copy.deepcopy(model).double()(x.double())
    patched = portakernel.patch(model)
    torch.testing.assert_close(model(x).double(), wanted, **CLOSE)
    assert outcomes(patched) == SERVED


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "layer", [nn.RMSNorm(32), nn.LayerNorm(32), nn.Softmax(-1)], ids=lambda one: type(one).__name__
)
def test_layers_of_16_bits_are_no_further_from_float64_than_torch_s(layer: nn.Module, dtype: torch.dtype) -> None:
    own, x = copy.deepcopy(layer).to(dtype), torch.randn(64, 9, 32).to(dtype)
    served = copy.deepcopy(own)
    exact = copy.deepcopy(own).double()
    if isinstance(exact, nn.RMSNorm):
        exact.eps = torch.finfo(torch.float32).eps
    patched = portakernel.patch(served)
    error, theirs = ((each(x).double() - exact(x.double())).square().mean().sqrt() for each in (served, own))
    assert error <= 1.05 * theirs
    assert [(row.outcome, row.calls) for row in patched.report()] == [("served", 1)]


@pytest.mark.filterwarnings(ROUNDS_WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_of_16_bits_is_served_or_stands_back_with_numbers(dtype: torch.dtype) -> None:
    model, x = Block(dtype=dtype), torch.randn(3, 5, 16).to(dtype)
    wanted = model(x)
    patched = portakernel.patch(model)
    torch.testing.assert_close(model(x), wanted, rtol=0.1, atol=0.02)
    assert {path: outcomes(patched)[path] for path in ROWS} == dict.fromkeys(ROWS, ("served", 1))
    if outcomes(patched)["attention"] != ("served", 1):
        assert re.match(
            r"[\d.]+ ulp off on average and .*, where the client's own code is ", reason(patched, "attention")
        )


def test_gradients_are_torch_s() -> None:
    model, x = Block(), torch.randn(3, 5, 16)
    own = copy.deepcopy(model)
    portakernel.patch(model)
    model(x).square().sum().backward()
    own(x).square().sum().backward()
    for got, wanted in zip(model.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, **CLOSE)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("causal", [False, True], ids=["added", "causal"])
def test_masks_of_attention_are_served(rank: int, causal: bool) -> None:
    model, x = Block(), torch.randn(3, 5, 16)
    mask = torch.full((5, 5), -torch.inf).triu(1)
    mask = mask if causal else mask + torch.randn(5, 5)
    mask = mask if rank == 2 else mask.expand(6, 5, 5)
    wanted = model(x, mask, causal)
    patched = portakernel.patch(model)
    torch.testing.assert_close(model(x, mask, causal), wanted, **CLOSE)
    assert outcomes(patched) == SERVED


@needs_cxx
def test_a_compiled_model_is_served_whole() -> None:
    model, x = Block(), torch.randn(3, 5, 16)
    wanted = model(x)
    patched = portakernel.patch(model)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), wanted, **CLOSE)
    assert {(row.outcome, row.calls, row.traces) for row in patched.report()} == {("served", 0, 1)}


def test_norms_over_several_dimensions_and_without_weights_are_served() -> None:
    model = nn.Sequential(
        nn.LayerNorm((4, 16)),
        nn.RMSNorm((4, 16)),
        nn.LayerNorm(16, bias=False),
        nn.RMSNorm(16, elementwise_affine=False),
    )
    x = torch.randn(3, 4, 16)
    wanted = model(x)
    with portakernel.patch(model) as patched:
        torch.testing.assert_close(model(x), wanted, **CLOSE)
        assert set(outcomes(patched).values()) == {("served", 1)}


def test_a_subclass_is_not_replaced_and_says_so() -> None:
    model, x = nn.Sequential(nn.LayerNorm(16), ScaledNorm(16)), torch.randn(3, 16)
    wanted = model(x)
    patched = portakernel.patch(model)
    torch.testing.assert_close(model(x), wanted, **CLOSE)
    assert outcomes(patched) == {"0": ("served", 1), "1": ("left to the client", 0)}
    name = f"{ScaledNorm.__module__}.ScaledNorm"
    assert reason(patched, "1") == f"{name} is a subclass of torch.nn.LayerNorm, and may compute something else"


def test_a_subclass_that_was_replaced_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the look at the exact class lost, the trial of the first call would find the other formula."""
    from portakernel.integrations.torch_nn import patched as module

    monkeypatch.setattr(
        module, "choice_of", lambda layer: layers.LayerNormLayer if isinstance(layer, nn.LayerNorm) else None
    )
    model, x = nn.Sequential(ScaledNorm(16)), torch.randn(3, 16)
    wanted = model(x)
    patched = portakernel.patch(model)
    with pytest.warns(
        ClientWarning, match=r"^torch\.nn's 0 of Sequential[ \d]* computes for itself, portakernel stands"
    ):
        got = model(x)
    assert torch.equal(got, wanted)
    assert outcomes(patched) == {"0": ("left to the client", 1)}


class OtherEps(layers.LayerNormLayer):
    def ours(self, module: Any, *arguments: Any) -> Any:
        return portakernel.ops.layer_norm(arguments[0], module.weight, module.bias, eps=2 * module.eps)


class OtherLayout(attention.AttentionLayer):
    def ours(self, module: Any, *arguments: Any) -> Any:
        return super().ours(module, *(each.flip(1) if isinstance(each, Tensor) else each for each in arguments))


class NoMask(attention.AttentionLayer):
    def ours(self, module: Any, *arguments: Any) -> Any:
        return super().ours(module, *arguments[:3], None, *arguments[4:])


@pytest.mark.parametrize(
    ("path", "kind", "served"),
    [("after", nn.LayerNorm, OtherEps), ("attention", nn.MultiheadAttention, OtherLayout),
     ("attention", nn.MultiheadAttention, NoMask)],
    ids=["wrong eps", "wrong layout", "dropped mask"],
)  # fmt: skip
def test_a_layer_that_is_served_wrongly_stands_back_loudly(
    path: str, kind: type[nn.Module], served: type[layers.TorchLayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from portakernel.integrations.torch_nn import choosing

    monkeypatch.setattr(choosing, "SERVED", {**choosing.SERVED, kind: served})
    model, x, mask = Block(), torch.randn(3, 5, 16), torch.randn(5, 5)
    wanted = model(x, mask)
    patched = portakernel.patch(model)
    with pytest.warns(
        ClientWarning, match=rf"^torch\.nn's {path} of Block[ \d]* computes for itself, portakernel stands"
    ):
        got = model(x, mask)
    torch.testing.assert_close(got, wanted, **CLOSE)
    assert outcomes(patched) == SERVED | {path: ("left to the client", 1)}
    assert "ulp off on average" in reason(patched, path)


def test_layers_whose_weights_are_read_by_a_module_above_are_bypassed_and_warned_of() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    model, x = nn.Sequential(nn.LayerNorm(16), layer), torch.randn(3, 5, 16)
    patched = portakernel.patch(model)
    with torch.no_grad(), pytest.warns(ClientWarning, match="set_fastpath_enabled") as told:
        wanted = model(x)
    assert len(told) == 3
    inside = ("1.self_attn", "1.norm1", "1.norm2")
    assert outcomes(patched) == {"0": ("served", 1), **dict.fromkeys(inside, ("bypassed", 0))}
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            torch.testing.assert_close(model(x), wanted, **CLOSE)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert set(outcomes(patched).values()) == {("served", 1), ("served", 2)}


def test_a_model_that_has_not_run_is_bypassed_without_a_warning() -> None:
    patched = portakernel.patch(Block())
    assert set(outcomes(patched).values()) == {("bypassed", 0)}
    told = "0 calls so far: the model has not run, or a module above reads the weights and does not call the layer"
    assert {row.refused for row in patched.report()} == {told}


def replaced_forward() -> nn.Module:
    norm = nn.LayerNorm(16)
    norm.forward = lambda x: 2 * x  # type: ignore[method-assign]
    return norm


@pytest.mark.parametrize(
    ("layer", "op", "told"),
    [
        (replaced_forward(), "layer_norm", "somebody else replaced the instance's forward"),
        (nn.RMSNorm(16).double(), "rms_norm", "weight is float64: the op takes float32, float16 and bfloat16"),
        (portakernel.nn.RMSNorm(16), "rms_norm", "portakernel.nn.RMSNorm calls the op itself"),
        (nn.GELU(), "gelu_and_mul", "no op computes GELU alone: gelu_and_mul takes the product behind it"),
        (nn.SiLU(), "silu_and_mul", "no op computes SiLU alone: silu_and_mul takes the product behind it"),
        (nn.Softmax(), "softmax", "dim is None: torch chooses it by the rank; give dim=-1"),
        (
            nn.MultiheadAttention(16, 2, kdim=8),
            "attention",
            "kdim or vdim differ from embed_dim: the three projections have weights of their own",
        ),
        (
            nn.MultiheadAttention(16, 2, add_zero_attn=True),
            "attention",
            "add_bias_kv or add_zero_attn: the op has no further key",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_no_call_can_be_served_of_is_left_with_the_reason(layer: nn.Module, op: str, told: str) -> None:
    before = dict(vars(layer))
    (row,) = [row for row in portakernel.patch(nn.Sequential(layer)).report() if row.layer.startswith("0 of ")]
    assert (row.op, row.refused, row.outcome) == (op, told, "left to the client")
    assert vars(layer) == before


@pytest.mark.parametrize(
    ("layer", "call", "told"),
    [
        (nn.Softmax(1), (torch.randn(2, 3, 4),), "dim=1 of 3: the op takes the last dimension"),
        (nn.Softmax(-1), (torch.randn(2, 3).double(),), "x is float64: the op takes float32, float16 and bfloat16"),
        (
            nn.RMSNorm(4, dtype=torch.float16),
            (torch.randn(2, 4),),
            "x is float32 and the weight float16: torch decides what that becomes",
        ),
    ],
    ids=["another dimension", "float64", "other weights"],
)
def test_a_call_that_the_op_cannot_serve_is_torch_s_and_counted(
    layer: nn.Module, call: tuple[Tensor, ...], told: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, of mixed dtypes
        wanted = layer(*call)
        patched = portakernel.patch(layer)
        assert torch.equal(layer(*call), wanted)
    assert [(row.calls, row.outcome, row.refused) for row in patched.report()] == [(1, "left to the client", told)]


@pytest.mark.parametrize(
    ("given", "training", "told"),
    [
        ({}, False, "need_weights=True: the op does not return the weights; call with need_weights=False"),
        (
            {"need_weights": False, "attn_mask": torch.zeros(5, 5, dtype=torch.bool)},
            False,
            "attn_mask is bool: the op adds floats; give -inf where it is True",
        ),
        (
            {"need_weights": False, "key_padding_mask": torch.zeros(3, 5)},
            False,
            "key_padding_mask: give it as a float attn_mask, (batch * heads, queries, keys), -inf where it hides",
        ),
        ({"need_weights": False}, True, "dropout: the op has none"),
    ],
    ids=["weights", "a boolean mask", "padding", "dropout"],
)
def test_a_call_of_attention_that_the_op_cannot_be_asked_is_torch_s(
    given: dict[str, Any], training: bool, told: str
) -> None:
    layer = nn.MultiheadAttention(16, 2, dropout=0.5, batch_first=True).train(training)
    x = torch.randn(3, 5, 16)
    torch.manual_seed(1)
    wanted, weights = layer(x, x, x, **given)
    patched = portakernel.patch(layer)
    torch.manual_seed(1)
    got, got_weights = layer(x, x, x, **given)
    assert torch.equal(got, wanted)
    assert (got_weights is None) == (weights is None)
    assert [(row.calls, row.refused) for row in patched.report()] == [(1, told)]


@pytest.mark.parametrize("sizes", [(0, 5, 5), (2, 0, 0), (2, 0, 5), (2, 5, 0), (0, 0, 0)])
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
def test_empty_batches_and_sequences_of_attention_are_served(sizes: tuple[int, int, int], masked: bool) -> None:
    batch, queries, keys = sizes
    layer = nn.MultiheadAttention(16, 2, batch_first=True)
    query, key = torch.randn(batch, queries, 16), torch.randn(batch, keys, 16)
    mask = torch.randn(queries, keys) if masked else None
    wanted, _ = layer(query, key, key, need_weights=False, attn_mask=mask)
    patched = portakernel.patch(layer)
    got, _ = layer(query, key, key, need_weights=False, attn_mask=mask)
    torch.testing.assert_close(got, wanted, **CLOSE)
    assert [(row.calls, row.outcome) for row in patched.report()] == [(1, "served")]


def test_empty_rows_are_served() -> None:
    model = nn.Sequential(nn.LayerNorm((4, 16)), nn.RMSNorm(16), nn.Softmax(-1))
    patched = portakernel.patch(model)
    assert model(torch.randn(0, 4, 16)).shape == (0, 4, 16)
    assert set(outcomes(patched).values()) == {("served", 1)}


def test_a_model_on_meta_is_torch_s_and_is_served_once_it_has_numbers() -> None:
    with torch.device("meta"):
        model = Block()
    x = torch.randn(3, 5, 16)
    patched = portakernel.patch(model)
    got = model(x.to("meta"))
    assert (got.device.type, got.shape, got.dtype) == ("meta", x.shape, x.dtype)
    refused = {row.refused for row in patched.report()}
    assert refused == {"x is on the meta device, where nothing is computed"}
    assert set(outcomes(patched).values()) == {("left to the client", 1)}
    model.to_empty(device="cpu").load_state_dict(Block().state_dict())
    wanted = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(model(x).double(), wanted, **CLOSE)
    assert {row.outcome for row in patched.report() if not row.refused} == {"served"}


X = torch.randn(3, 5, 16)


@pytest.mark.parametrize(
    "call",
    [((), {}), ((X, X), {}), ((), {"y": X}), ((X,), {"y": X}), ((3,), {}), ((None,), {}), ((X, X, 3), {}),
     ((X, X, X), {"attn_mask": 3}), ((X, X, X), {"y": 3}), ((X,), {"input": X}), ((X[..., :7],) * 3, {})],
    ids=["nothing", "two", "another name", "one more by name", "a number", "None", "tensors and a number", "no mask",
         "another name besides", "twice", "other sizes"],
)  # fmt: skip
@pytest.mark.parametrize(
    "layer",
    [nn.RMSNorm(16), nn.LayerNorm(16), nn.Softmax(-1), nn.MultiheadAttention(16, 2)],
    ids=lambda one: type(one).__name__,
)
def test_a_call_that_does_not_fit_raises_what_torch_raises(
    layer: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    arguments, named = call
    with pytest.raises(Exception) as torch_s:  # noqa: PT011 - whatever torch raises
        layer(*arguments, **named)
    with portakernel.patch(layer) as patched:
        with pytest.raises(type(torch_s.value), match=f"^{re.escape(str(torch_s.value))}$") as ours:
            layer(*arguments, **named)
        assert type(ours.value) is type(torch_s.value)
        assert sum(row.calls for row in patched.report()) == 0


@pytest.mark.parametrize(
    ("layer", "name"), [(nn.RMSNorm(16), "x"), (nn.LayerNorm(16), "input"), (nn.Softmax(-1), "input")]
)
def test_the_tensor_may_be_given_by_its_name(layer: nn.Module, name: str) -> None:
    wanted = layer(**{name: X})
    with portakernel.patch(layer) as patched:
        torch.testing.assert_close(layer(**{name: X}), wanted, **CLOSE)
        assert [(row.calls, row.outcome) for row in patched.report()] == [(1, "served")]


def test_patched_models_are_scripted_once_they_are_torch_s_again() -> None:
    layer = nn.LayerNorm(16)
    patched = portakernel.patch(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(torch.jit.frontend.NotSupportedError):
            torch.jit.script(layer)
        patched.unpatch()
        assert torch.equal(torch.jit.script(layer)(X), layer(X))


def test_hooks_are_called_as_before() -> None:
    norm, seen = nn.LayerNorm(16), list[str]()
    norm.register_forward_pre_hook(lambda *_: seen.append("before"))
    norm.register_forward_hook(lambda *_: seen.append("after"))
    with portakernel.patch(norm) as patched:
        norm(torch.randn(2, 16))
        assert seen == ["before", "after"]
        assert [row.outcome for row in patched.report()] == ["served"]


@pytest.mark.filterwarnings(ROUNDS_WEIGHTS)
def test_autocast_is_a_kind_of_call_of_its_own() -> None:
    model, x = Block(), torch.randn(3, 5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = model(x)
    patched = portakernel.patch(model)
    model(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = model(x)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.02)
    assert {path: outcomes(patched)[path] for path in ROWS} == dict.fromkeys(ROWS, ("served", 2))


def test_patching_again_changes_nothing_and_leaving_takes_back_what_it_replaced() -> None:
    model = Block()
    before = {module: dict(vars(module)) for module in model.modules()}
    first = portakernel.patch(model)
    forwards = {module: vars(module).get("forward") for module in model.modules()}
    with portakernel.patch(model) as again:
        assert {module: vars(module).get("forward") for module in model.modules()} == forwards
        assert again.report() == first.report()
    assert {module: vars(module).get("forward") for module in model.modules()} == forwards
    first.unpatch()
    first.unpatch()
    assert {module: dict(vars(module)) for module in model.modules()} == before


def test_another_s_forward_over_ours_stays() -> None:
    norm = nn.LayerNorm(16)
    patched = portakernel.patch(norm)
    theirs = lambda x: x  # noqa: E731 - as people replace one
    norm.forward = theirs  # type: ignore[method-assign]
    patched.unpatch()
    assert norm.forward is theirs


def test_copies_stay_served_and_pickles_are_torch_s_again() -> None:
    model, x = Block(), torch.randn(3, 5, 16)
    wanted = model(x)
    portakernel.patch(model)
    model(x)
    copied = copy.deepcopy(model)
    assert copied.after.forward.__self__ is copied.after  # type: ignore[attr-defined]
    torch.testing.assert_close(copied(x), wanted, **CLOSE)
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    for loaded in (torch.load(kept, weights_only=False), pickle.loads(pickle.dumps(model))):
        assert torch.equal(loaded(x), wanted)
        again = portakernel.patch(loaded)
        loaded(x)
        assert outcomes(again) == SERVED


def test_its_text_names_kernels_and_what_is_not_replaced() -> None:
    model = Block()
    patched = portakernel.patch(model)
    model(torch.randn(3, 5, 16))
    assert set(patched.kernels()) == {"attention", "layer_norm", "rms_norm", "softmax"}
    assert all(sum(kernels.values()) >= 1 for kernels in patched.kernels().values())
    *_, last = str(patched).splitlines()
    assert last.startswith(
        "Functions that a model calls itself, such as torch.nn.functional.scaled_dot_product_attention,"
    )
    assert re.search(r"^rms_norm by torch\.rms_norm_cpu \d+ calls", str(patched), re.MULTILINE)
    assert repr(patched) == "<Patched Block: 4 served, 0 left>"


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "nn.md").read_text(encoding="utf-8")
    code, shown = re.findall(r"```python\n(import torch\nimport portakernel\n.*?)```.*?```\n(.*?)```", page, re.DOTALL)[
        0
    ]
    exec(compile(code, "docs/nn.md", "exec"), {})
    # the models that were patched before it in this process have the first numbers
    printed = re.sub(r"(Sequential) \d+", r"\1", capsys.readouterr().out)
    lines = [line.split() for line in printed.splitlines()]
    *rows, more = shown.splitlines()
    assert (lines[: len(rows)], more) == ([row.split() for row in rows], "...")


def test_what_is_no_module_is_refused() -> None:
    wrong: Any = "model"
    with pytest.raises(
        ArgumentTypeError, match=r"^patch takes a torch\.nn\.Module, whose layers it serves; str was given$"
    ):
        portakernel.patch(wrong)
