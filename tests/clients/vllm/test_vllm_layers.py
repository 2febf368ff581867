"""vLLM's layers one by one: what ops serve, how near it is, what is left to vLLM, and that faults are noticed."""

import dataclasses
import gc
import importlib
import inspect
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from client_environment import require
from torch import Tensor, nn

require("vllm")

from vllm.config import CompilationConfig, CompilationMode, PassConfig, VllmConfig, set_current_vllm_config  # noqa: E402 - after the skip
from vllm.model_executor.custom_op import op_registry_oot  # noqa: E402
from vllm.model_executor.layers import activation, layernorm, rotary_embedding  # noqa: E402
from vllm.model_executor.layers.logits_processor import LogitsProcessor  # noqa: E402
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8  # noqa: E402
from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape  # noqa: E402

from portakernel.errors import ClientWarning, UnknownNameError  # noqa: E402
from portakernel.integrations import vllm as integration  # noqa: E402
from portakernel.integrations.client import client  # noqa: E402
from portakernel.integrations.ledger import Ledger, Row  # noqa: E402
from portakernel.integrations.vllm import classes, fusions, rotary, switch  # noqa: E402
from portakernel.integrations.vllm.classes import FORWARDS, vllm_class  # noqa: E402
from portakernel.integrations.vllm.compile_cache import FACTOR, digest  # noqa: E402
from portakernel.integrations.vllm.extension_points import ExtensionPointError  # noqa: E402
from portakernel.integrations.vllm.norms import RMS_NORM  # noqa: E402
from portakernel.integrations.vllm.plugin import enable_by_environment  # noqa: E402
from portakernel.integrations.vllm.tested import TESTED  # noqa: E402

SIZE, ROWS = 96, 17
LAYERS = tuple(word for word in switch.WORDS if word not in ("scaled_mm", "paged_attention"))
Engine = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Each test begins and ends without portakernel under vLLM, and with nothing counted."""
    assert not op_registry_oot
    yield
    integration.disable()
    op_registry_oot.clear()
    switch.switch.cache_clear()
    record = client("vllm")
    record.ledger = Ledger()
    record._made.clear()
    record._warned.clear()
    classes.OFF.clear()
    gc.collect()


@pytest.fixture
def engine() -> Engine:
    """The configuration that vLLM's layers ask as they are made: compiled as by default, unless said otherwise."""

    def configured(*custom_ops: str) -> AbstractContextManager[Any]:
        return set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(custom_ops=list(custom_ops))))

    return configured


def _made(engine: Engine, make: Callable[[], Any], *custom_ops: str) -> Any:
    with engine(*custom_ops or ("none",)):
        layer = make()
    for parameter in layer.parameters():
        parameter.data = torch.rand_like(parameter) + 0.5
        parameter.requires_grad_(False)
    return layer


def _numbers(dtype: torch.dtype = torch.float32, *sizes: int) -> Tensor:
    return torch.randn(*sizes or (ROWS, SIZE)).to(dtype)


def _row(layer: str, outcome: str = "served") -> Row:
    (row,) = (row for row in integration.report() if row.layer == layer and row.outcome == outcome)
    return row


def _rope(name: str = "RotaryEmbedding", *, halves: bool = True, width: int = 32, **more: Any) -> Any:
    return getattr(rotary_embedding, name)(
        head_size=32,
        rotary_dim=width,
        max_position_embeddings=64,
        base=10000.0,
        is_neox_style=halves,
        dtype=torch.float32,
        **more,
    )


def _heads(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randint(0, 64, (ROWS,)), _numbers(dtype, ROWS, 4 * 32), _numbers(dtype, ROWS, 2 * 32)


NORMS: dict[str, tuple[Callable[[torch.dtype], Any], int]] = {
    "RMSNorm": (lambda dtype: layernorm.RMSNorm(SIZE, 1e-5, dtype=dtype), SIZE),
    "RMSNorm with a float32 weight": (lambda dtype: layernorm.RMSNorm(SIZE, 1e-5, dtype=torch.float32), SIZE),
    "LayerNorm": (lambda dtype: layernorm.LayerNorm(SIZE, dtype=dtype), SIZE),
    "LayerNorm without bias": (lambda dtype: layernorm.LayerNorm(SIZE, bias=False, dtype=dtype), SIZE),
    "SiluAndMul": (lambda dtype: activation.SiluAndMul(), 2 * SIZE),
    "GeluAndMul": (lambda dtype: activation.GeluAndMul(), 2 * SIZE),
    "GeluAndMul of tanh": (lambda dtype: activation.GeluAndMul("tanh"), 2 * SIZE),
}


def _gemma(dtype: torch.dtype) -> Any:
    layer = layernorm.GemmaRMSNorm(SIZE)
    return layer.to(dtype)


NORMS["GemmaRMSNorm"] = (_gemma, SIZE)


def _error(results: Any, exact: Any) -> float:
    pairs = zip(
        results if isinstance(results, tuple) else (results,),
        exact if isinstance(exact, tuple) else (exact,),
        strict=True,
    )
    return max(float((found.double() - true).square().mean().sqrt()) for found, true in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NORMS)
def test_layer_is_served_as_near_to_float64_as_vllms_own(name: str, dtype: torch.dtype, engine: Engine) -> None:
    integration.enable(LAYERS)
    make, width = NORMS[name]
    layer = _made(engine, lambda: make(dtype))
    x = _numbers(dtype, 512, width)
    served, own = layer(x.clone()), layer.portakernel_own(x.clone())
    exact = layer.portakernel_served.exact(layer, *((x.double(), None) if "RMSNorm" in name else (x.double(),)))
    assert served.dtype == own.dtype == dtype
    assert _error(served, exact) <= 1.05 * _error(own, exact) + 1e-7
    row = _row(name.split(maxsplit=1)[0])
    assert (row.calls, row.traces) == (1, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["RMSNorm", "GemmaRMSNorm"])
def test_a_residual_is_added_and_returned(name: str, dtype: torch.dtype, engine: Engine) -> None:
    integration.enable(["rms_norm"])
    layer = _made(engine, lambda: NORMS[name][0](dtype))
    # of a residual stream as models have it, several times as large as what a layer adds
    x, residual = _numbers(dtype, 2048, SIZE), _numbers(dtype, 2048, SIZE) * 4
    served = layer(x.clone(), residual.clone())
    own = layer.portakernel_own(x.clone(), residual.clone())
    exact = layer.portakernel_served.exact(layer, x.double(), residual.double())
    assert torch.equal(served[1], own[1])
    assert _error(served[0], exact[0]) <= 1.05 * _error(own[0], exact[0]) + 1e-7
    op = "rms_norm" if name == "GemmaRMSNorm" and dtype != torch.float32 else "add_rms_norm"
    assert [(row.op, row.calls) for row in integration.report() if row.calls] == [(op, 1)]


def test_weights_of_one_are_left_to_vllm_in_16_bits_whose_products_are_exact(engine: Engine) -> None:
    integration.enable(["rms_norm"])
    layer = _made(engine, lambda: layernorm.RMSNorm(SIZE, dtype=torch.bfloat16))
    layer.weight.data.fill_(1.0)
    x = _numbers(torch.bfloat16)
    with pytest.warns(ClientWarning, match="^vllm's RMSNorm computes for itself, portakernel stands back: result 0: "):
        layer(x, x.flip(-1))
    layer(x)
    assert [(row.op, row.outcome) for row in integration.report() if row.calls] == [
        ("add_rms_norm", "left to the client"),
        ("rms_norm", "served"),
    ]


SCALED: dict[str, dict[str, Any]] = {
    "RotaryEmbedding": {},
    "DynamicNTKAlphaRotaryEmbedding": {"scaling_alpha": 2.0},
    "DynamicNTKScalingRotaryEmbedding": {"scaling_factor": 2.0, "max_trained_positions": 32},
    "Gemma4RotaryEmbedding": {},
    "LinearScalingRotaryEmbedding": {"scaling_factors": 2.0},
    "Llama3RotaryEmbedding": {
        "scaling_factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "orig_max_position": 32,
    },
    "NTKScalingRotaryEmbedding": {"scaling_factor": 2.0},
    "YaRNScalingRotaryEmbedding": {"scaling_factor": 2.0},
}


@pytest.mark.parametrize("halves", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("width", [32, 16])
@pytest.mark.parametrize("name", rotary.FITTING)
def test_each_rotary_class_is_served_by_its_own_name(name: str, width: int, halves: bool, engine: Engine) -> None:
    integration.enable(["rotary_embedding"])
    layer = _made(engine, lambda: _rope(name, halves=halves, width=width, **SCALED[name]))
    positions, query, key = _heads()
    served = layer(positions, query.clone(), key.clone())
    own = layer.portakernel_own(positions, query.clone(), key.clone())
    exact = layer.portakernel_served.exact(layer, positions, query.double(), key.double())
    assert [each.shape for each in served] == [query.shape, key.shape]
    for found, wanted, true in zip(served, own, exact, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.double(), true, rtol=1e-6, atol=1e-6)
    assert _row(name).calls == 1


def test_rotary_takes_slices_of_one_projection_and_heads_in_their_own_dimension(engine: Engine) -> None:
    integration.enable(["rotary_embedding"])
    layer = _made(engine, _rope)
    positions = torch.randint(0, 64, (ROWS,))
    query, key, _ = _numbers(torch.float32, ROWS, 8 * 32).split([4 * 32, 2 * 32, 2 * 32], -1)
    own = layer.portakernel_own(positions, query.contiguous(), key.contiguous())
    flat = layer(positions, query, key)
    of_heads = layer(positions, query.unflatten(-1, (4, 32)), key.unflatten(-1, (2, 32)))
    for each, apart, wanted in zip(flat, of_heads, own, strict=True):
        torch.testing.assert_close(each, wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(apart.flatten(1), wanted, rtol=1e-6, atol=1e-6)


def test_every_rotary_class_of_vllm_is_served_or_left_with_a_reason() -> None:
    known = {layer.layer for layer in FORWARDS} | set(rotary.LEFT)
    classes = {
        name
        for module in pkgutil.iter_modules(rotary_embedding.__path__)
        for name, class_ in inspect.getmembers(
            importlib.import_module(f"{rotary_embedding.__name__}.{module.name}"), inspect.isclass
        )
        if name.split("Rotary")[0] != name and issubclass(class_, nn.Module) and name != "ApplyRotaryEmb"
    }
    assert {name for name in classes if "RotaryEmbedding" in name} <= known
    outcome = integration.enable(["rotary_embedding"])
    assert {left.what for left in outcome.left} == {f"vLLM's {name}" for name in rotary.LEFT}


@pytest.mark.parametrize("group", [GroupShape.PER_TOKEN, GroupShape.PER_TENSOR, GroupShape(1, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dynamic_quantisation_gives_the_numbers_back_as_well_as_vllms_own(
    group: Any, dtype: torch.dtype, engine: Engine
) -> None:
    integration.enable(["quantize_fp8"])
    layer = _made(engine, lambda: QuantFP8(static=False, group_shape=group))
    x = _numbers(dtype, ROWS, 256)
    x[3] = 0.0
    (q, scale), (own_q, own_scale) = layer(x), layer.forward_native(x)
    assert (q.dtype, q.shape, scale.dtype, scale.shape) == (own_q.dtype, own_q.shape, own_scale.dtype, own_scale.shape)
    assert layer.portakernel_served.shortfall((q, scale), (own_q, own_scale), x.double(), "quantize_fp8") == ""
    assert _row("QuantFP8").calls == 1


def _refusals() -> dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]], str]]:
    def static() -> tuple[Any, ...]:
        return _numbers(), torch.tensor([0.02])

    return {
        "variance_size_override": (
            lambda: layernorm.RMSNorm(SIZE, var_hidden_size=SIZE // 2),
            lambda: (_numbers(),),
            "variance_size_override: the op's mean is that of the whole row",
        ),
        "weightless": (
            lambda: layernorm.RMSNorm(SIZE, has_weight=False),
            lambda: (_numbers(),),
            "no weight: the op multiplies by one",
        ),
        "residual dtype": (
            lambda: layernorm.RMSNorm(SIZE),
            lambda: (_numbers(torch.bfloat16), _numbers()),
            "a residual of torch.float32 beside an input of torch.bfloat16: the op adds tensors of one dtype",
        ),
        "weight dtype": (
            lambda: layernorm.RMSNorm(SIZE, dtype=torch.float16),
            lambda: (_numbers(torch.bfloat16),),
            "a weight of torch.float16 beside an input of torch.bfloat16: the op takes the input's dtype or float32",
        ),
        "float64": (
            activation.SiluAndMul,
            lambda: (_numbers(torch.float64),),
            "dtype torch.float64: the op takes float32, float16 and bfloat16",
        ),
        "LayerNorm without weight": (
            lambda: layernorm.LayerNorm(SIZE, elementwise_affine=False),
            lambda: (_numbers(),),
            "no weight (elementwise_affine=False): the op multiplies by one",
        ),
        "rotary without key": (
            _rope,
            lambda: (_heads()[0], _heads()[1]),
            "no key: the op turns queries and keys together",
        ),
        "static quantisation": (
            lambda: QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR),
            static,
            "static scales: the op makes its own",
        ),
        "padding": (
            lambda: QuantFP8(static=False, group_shape=GroupShape.PER_TOKEN, num_token_padding=32),
            lambda: (_numbers(),),
            "num_token_padding: the op adds no rows",
        ),
        "other groups": (
            lambda: QuantFP8(static=False, group_shape=GroupShape(1, 32), use_ue8m0=False),
            lambda: (_numbers(),),
            "scales of another group than a tensor, a row or 128 of a row",
        ),
        "scales in columns": (
            lambda: QuantFP8(static=False, group_shape=GroupShape(1, 128), column_major_scales=True),
            lambda: (_numbers(torch.float32, ROWS, 256),),
            "scales in columns, aligned, or rounded to powers of two: the op's are float32 in rows",
        ),
    }


@pytest.mark.parametrize("what", _refusals())
def test_what_a_contract_lacks_is_vllms_own_and_counted(what: str, engine: Engine) -> None:
    integration.enable(LAYERS)
    make, arguments, reason = _refusals()[what]
    layer = _made(engine, make)
    given = arguments()
    own = layer.portakernel_own(*(each.clone() for each in given))
    found = layer(*(each.clone() for each in given))
    for mine, theirs in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, own)), strict=True):
        assert mine is None or (mine.dtype == theirs.dtype and torch.equal(mine.double(), theirs.double()))
    (row,) = (row for row in integration.report() if row.calls)
    assert (row.outcome, row.refused, row.calls) == ("left to the client", reason, 1)


def test_batch_invariance_is_left_to_vllm(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    integration.enable(["silu_and_mul"])
    layer = _made(engine, activation.SiluAndMul)
    layer(_numbers())
    reason = "VLLM_BATCH_INVARIANT: kernels may differ between batches, unset it to have the op serve"
    assert _row("SiluAndMul", "left to the client").refused == reason


def test_layers_are_served_where_vllm_compiles_and_switches_custom_ops_off(engine: Engine) -> None:
    integration.enable(["rms_norm"])
    layer = _made(engine, lambda: layernorm.RMSNorm(SIZE), "none")
    layer(_numbers())
    assert _row("RMSNorm").calls == 1


def test_custom_ops_that_name_a_layer_switch_it_off_and_the_first_step_says_so(engine: Engine) -> None:
    integration.enable(["rms_norm", "silu_and_mul"])
    model = nn.Module()
    model.norm = _made(engine, lambda: layernorm.RMSNorm(SIZE), "none", "-rms_norm")
    model.act = _made(engine, activation.SiluAndMul)
    model.logits_processor = _made(engine, lambda: LogitsProcessor(SIZE, logits_as_input=True))
    model.act(model.norm(_numbers()))
    message = (
        "vllm's RMSNorm is enabled and bypassed: 1 made, no call reached them; compilation_config's custom_ops must not"
        " hold -rms_norm, and another plugin may not change enabled() or the forward of vLLM's RMSNorm"
    )
    with pytest.warns(ClientWarning) as warned:
        model.logits_processor(None, _numbers())
    assert [str(each.message) for each in warned] == [message]
    assert _row("RMSNorm", "bypassed").calls == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.logits_processor(None, _numbers())


def test_the_default_bypass_of_custom_ops_would_be_noticed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    integration.enable(["rms_norm"])
    ours = op_registry_oot["RMSNorm"]
    monkeypatch.setattr(ours, "enabled", layernorm.RMSNorm.__dict__.get("enabled", layernorm.RMSNorm.enabled))
    model = nn.Module()
    model.norm = _made(engine, lambda: layernorm.RMSNorm(SIZE), "none")
    model.norm(_numbers())
    assert _row("RMSNorm", "bypassed").refused.startswith("1 made, no call reached them; ")
    with pytest.warns(ClientWarning, match="RMSNorm is enabled and bypassed"):
        switch.switch().stepped()


def test_a_subclass_of_another_name_is_left_and_told(engine: Engine) -> None:
    class WiderNorm(layernorm.RMSNorm):
        pass

    integration.enable(["rms_norm"])
    model = nn.Module()
    model.norm = _made(engine, lambda: WiderNorm(SIZE))
    model.norm(_numbers())
    assert not any(row.calls for row in integration.report())
    reason = "a subclass of RMSNorm: vLLM replaces a class by its own name (1 made)"
    assert _row("WiderNorm", "left to the client").refused == reason


def test_layers_that_were_made_before_are_left_and_told(engine: Engine) -> None:
    before = _made(engine, activation.SiluAndMul)
    integration.enable(["silu_and_mul"])
    model = nn.Module()
    model.act = before
    model.act(_numbers())
    rows = [row for row in integration.report() if row.layer == "SiluAndMul"]
    assert "made before portakernel was enabled (1 made)" in [row.refused for row in rows]


@pytest.mark.parametrize("halves", [True, False], ids=["neox", "gptj"])
def test_a_swapped_layout_stands_back_loudly(engine: Engine, halves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    integration.enable(["rotary_embedding"])
    layer = _made(engine, lambda: _rope(halves=halves))
    real = rotary.ops.rotary_embedding

    def swapped(*given: Any, interleaved: bool, **more: Any) -> Any:
        return real(*given, interleaved=not interleaved, **more)

    monkeypatch.setattr(rotary.ops, "rotary_embedding", swapped)
    positions, query, key = _heads()
    own = layer.portakernel_own(positions, query.clone(), key.clone())
    with pytest.warns(ClientWarning, match="^vllm's RotaryEmbedding computes for itself, portakernel stands back: "):
        found = layer(positions, query.clone(), key.clone())
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, own, strict=True))
    assert "ulp off on average" in _row("RotaryEmbedding", "left to the client").refused


@pytest.mark.parametrize("residual", [False, True])
def test_a_wrong_epsilon_stands_back_loudly(engine: Engine, residual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    integration.enable(["rms_norm"])
    layer = _made(engine, lambda: layernorm.RMSNorm(SIZE, 1e-5))
    given = (_numbers(), _numbers()) if residual else (_numbers(),)
    own = layer.portakernel_own(*(each.clone() for each in given))

    def other(module: Any, x: Tensor, added: Tensor | None) -> Any:
        if added is None:
            return rotary.ops.rms_norm(x, module.weight, eps=1e-6)
        return rotary.ops.add_rms_norm(x, added, module.weight, eps=1e-6)

    monkeypatch.setattr(RMS_NORM, "ours", other, raising=True)
    with pytest.warns(ClientWarning, match="^vllm's RMSNorm computes for itself, portakernel stands back: "):
        found = layer(*(each.clone() for each in given))
    for mine, theirs in zip(*((each if residual else (each,)) for each in (found, own)), strict=True):
        assert torch.equal(mine, theirs)


def test_a_class_that_is_gone_is_refused_and_nothing_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(layernorm, "GemmaRMSNorm")
    with pytest.raises(ExtensionPointError) as refused:
        integration.enable(LAYERS)
    assert str(refused.value) == (
        "vLLM has no layer class GemmaRMSNorm where it was (module 'vllm.model_executor.layers.layernorm' has no"
        " attribute 'GemmaRMSNorm'): nothing is replaced. Leave rms_norm out of the ops, or install a version of vLLM"
        " that was tested"
    )
    assert not op_registry_oot


def test_another_plugins_class_is_refused_by_name_and_nothing_replaced() -> None:
    @layernorm.RMSNorm.register_oot
    class Theirs(layernorm.RMSNorm):
        pass

    with pytest.raises(ExtensionPointError) as refused:
        integration.enable(LAYERS)
    name = f"{Theirs.__module__}.{Theirs.__qualname__}"
    assert str(refused.value) == (
        f"vLLM's RMSNorm is replaced by {name} of another plugin, and vLLM takes one class for a name: nothing is"
        " replaced. Leave rms_norm out of the ops, or that plugin out of VLLM_PLUGINS"
    )
    assert set(op_registry_oot) == {"RMSNorm"}


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(TESTED), "installed", lambda self: "0.34.0")
    with pytest.raises(integration.UnsupportedVersionError) as refused:
        integration.enable()
    assert str(refused.value) == (
        "portakernel.integrations.vllm was tested with vllm <0.33,>=0.32; 0.34.0 is installed, whose extension points"
        " may differ. Install a tested version"
    )
    assert not op_registry_oot


def test_enabling_again_changes_nothing_and_disabling_restores(engine: Engine) -> None:
    integration.enable(["silu_and_mul"])
    ours = dict(op_registry_oot)
    integration.enable(["silu_and_mul"])
    assert op_registry_oot == ours
    layer = _made(engine, activation.SiluAndMul)
    layer(_numbers())
    integration.disable()
    assert not op_registry_oot
    assert type(_made(engine, activation.SiluAndMul)) is activation.SiluAndMul
    layer(_numbers())
    assert [row.calls for row in integration.report()] == [1]
    integration.enable(["silu_and_mul"])
    layer(_numbers())
    assert [row.calls for row in integration.report()] == [2]


def test_an_unknown_op_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match=r"^enable: unknown op of vllm 'rms_nrom'; did you mean 'rms_norm'\?"):
        integration.enable(["rms_nrom"])


def test_the_key_of_vllms_graph_cache_tells_what_is_served() -> None:
    from vllm import envs

    assert FACTOR not in envs.compile_factors()
    integration.enable(["silu_and_mul"])
    one = envs.compile_factors()[FACTOR]
    integration.enable(["rms_norm"])
    both = envs.compile_factors()[FACTOR]
    assert one == digest(["silu_and_mul"]) != both
    integration.disable()
    assert FACTOR not in envs.compile_factors()


def test_the_key_is_the_same_in_another_process() -> None:
    program = "from portakernel.integrations.vllm.compile_cache import digest; print(digest(['rms_norm']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest(["rms_norm"])


def test_a_graph_out_of_vllms_cache_is_no_bypass(engine: Engine) -> None:
    integration.enable(["rms_norm", "silu_and_mul"])
    model = nn.Module()
    model.norm = _made(engine, lambda: layernorm.RMSNorm(SIZE))
    model.act = _made(engine, activation.SiluAndMul, "none", "-silu_and_mul")
    compiled = nn.Module()
    compiled.was_aot_compile_fn_loaded_from_disk = True
    model.compiled = compiled
    with pytest.warns(ClientWarning, match="SiluAndMul is enabled and bypassed") as warned:
        switch.switch().stepped()
    assert len(warned) == 1
    assert _row("SiluAndMul", "bypassed").calls == 0
    (row,) = (row for row in integration.report() if row.layer == "RMSNorm")
    note = "in a graph that vLLM's cache kept, traced by an earlier process with these settings"
    assert (row.outcome, row.calls, row.traces, row.note) == ("served", 0, 0, note)


def test_fusions_that_no_longer_match_are_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusions, "_on", set())
    integration.enable(["rms_norm", "silu_and_mul"])
    norm, act = _made(engine, lambda: layernorm.RMSNorm(SIZE)), _made(engine, activation.SiluAndMul)
    norm(_numbers())
    act(_numbers())
    assert not any(row.note for row in integration.report())
    passes = SimpleNamespace(fuse_norm_quant=True, enable_qk_norm_rope_fusion=True, fuse_act_quant=False)
    fusions.note(SimpleNamespace(mode=CompilationMode.NONE, pass_config=passes))
    assert not any(row.note for row in integration.report())
    fusions.note(SimpleNamespace(mode=CompilationMode.VLLM_COMPILE, pass_config=passes))
    note = "vLLM's fusions no longer match: fuse_norm_quant, enable_qk_norm_rope_fusion"
    assert _row("RMSNorm").note == note
    assert str(_row("RMSNorm")).endswith(f"served ({note})")
    assert _row("SiluAndMul").note == ""


def test_every_fusion_that_is_told_is_one_of_vllms() -> None:
    assert set(fusions.PASSES) <= {field.name for field in dataclasses.fields(PassConfig)}


def test_a_loader_that_passed_by_the_entry_point_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTAKERNEL_CLIENTS", "vllm:rms_norm")
    (row,) = integration.report()
    assert row.outcome == "bypassed"
    assert "where VLLM_PLUGINS is set it must name portakernel" in row.refused
    enable_by_environment()
    assert set(op_registry_oot) == {"RMSNorm", "GemmaRMSNorm"}
    assert all(row.outcome == "left to the client" for row in integration.report())


@pytest.mark.parametrize("clients", [None, "sglang:rms_norm"])
def test_the_entry_point_does_nothing_unless_the_variable_says_so(
    clients: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PORTAKERNEL_CLIENTS", raising=False)
    if clients is not None:
        monkeypatch.setenv("PORTAKERNEL_CLIENTS", clients)
    enable_by_environment()
    assert not op_registry_oot
    assert integration.report() == ()


@pytest.mark.parametrize("layer", FORWARDS, ids=lambda layer: layer.layer)
def test_forward_takes_what_vllms_own_takes(layer: Any) -> None:
    mine = list(inspect.signature(FORWARDS[layer]).parameters.values())
    theirs = list(inspect.signature(vllm_class(layer).forward_native).parameters.values())
    if theirs[0].name != "self":  # a static method
        mine = mine[1:]
    assert [(each.name, each.default) for each in mine] == [(each.name, each.default) for each in theirs]
