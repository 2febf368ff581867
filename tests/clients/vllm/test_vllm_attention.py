"""vLLM's attention on a CPU by the paged ops: its numbers, what stays vLLM's, and that faults are noticed."""

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from client_environment import require

require("vllm")

from vllm.v1.attention.backend import AttentionType  # noqa: E402 - after the skip
from vllm.v1.attention.backends import cpu_attn  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

from portakernel.errors import ClientWarning  # noqa: E402
from portakernel.integrations import vllm as integration  # noqa: E402
from portakernel.integrations.client import client  # noqa: E402
from portakernel.integrations.ledger import Ledger  # noqa: E402
from portakernel.integrations.vllm import attention, switch  # noqa: E402

HEADS, KEY_HEADS, SIZE, PAGE = 4, 2, 32, 32
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one key head for all": {"num_kv_heads": 1},
    "window": {"sliding_window": 6},
    "softcap": {"logits_soft_cap": 2.0},
    "sinks": {"sinks": torch.linspace(-1.0, 2.0, HEADS)},
    "ALiBi": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins and ends without portakernel under vLLM; layers are made as in an engine of float32."""
    config = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.float32))
    monkeypatch.setattr(cpu_attn, "get_current_vllm_config", lambda: config)
    integration.enable(["paged_attention"])
    yield
    integration.disable()
    switch.switch.cache_clear()
    record = client("vllm")
    record.ledger = Ledger()
    record._made.clear()
    record._warned.clear()
    gc.collect()


def _impl(**form: Any) -> Any:
    given = {"num_heads": HEADS, "head_size": SIZE, "scale": SIZE**-0.5, "num_kv_heads": KEY_HEADS, **form}
    named = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto", **given}
    return AttentionBackendEnum.CPU_ATTN.get_class().get_impl_cls()(**named)


def _layer(dtype: torch.dtype) -> Any:
    isa = cpu_attn._get_attn_isa(dtype, PAGE, SIZE, "auto")
    return SimpleNamespace(isa=isa, _k_scale_float=1.0, _v_scale_float=1.0)


def _step(impl: Any, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """What a layer makes of a step, as an engine runs it, and the step's queries, keys and values."""
    layer = _layer(dtype)
    impl.portakernel_isa, impl.portakernel_page = layer.isa, PAGE
    query, key, value = attention.PAGED_ATTENTION.drawn(impl, (str(dtype),))
    step = attention._Trial(impl, key)
    impl.do_kv_cache_update(layer, key, value, step.cache, step.slots)
    out = torch.empty_like(query)
    impl.forward(layer, query, key, value, step.cache, step.metadata, out)
    return out, (query, key, value)


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_layer_is_served_as_near_to_float64_as_vllms_own(form: str, dtype: torch.dtype) -> None:
    impl = _impl(**FORMS[form])
    found, given = _step(impl, dtype)
    own = attention.PAGED_ATTENTION.own(impl, *given)
    exact = attention.PAGED_ATTENTION.exact(impl, *(each.double() for each in given))
    assert _error(found, exact) <= 1.05 * _error(own, exact) + 1e-6
    counted = [(row.layer, row.op, row.outcome, row.calls) for row in integration.report() if row.calls]
    assert sorted(counted) == [
        ("Attention", "paged_attention", "served", 1),
        ("Attention", "write_kv_cache", "served", 1),
    ]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"kv_cache_dtype": "fp8"}, "a float8 cache: vLLM's scales are numbers here, the op's tensors"),
        (
            {"attn_type": AttentionType.ENCODER_ONLY},
            f"attention of type {AttentionType.ENCODER_ONLY}: the cache is no decoder's",
        ),
    ],
)
def test_what_the_ops_lack_is_vllms_own(form: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("do_kv_cache_update", "forward"):
        monkeypatch.setattr(cpu_attn.CPUAttentionBackendImpl, name, lambda *given, name=name: seen.append(name))
    _step(_impl(**form))
    assert seen == ["do_kv_cache_update", "forward"]
    (row,) = (row for row in integration.report() if row.calls)
    assert (row.op, row.outcome, row.refused, row.calls) == ("paged_attention", "left to the client", reason, 1)


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        ("plain", {"scale": 0.3}),
        ("plain", {"causal": False}),
        ("window", {"window": (-1, -1)}),
        ("softcap", {"softcap": 0.0}),
        ("sinks", {"sinks": None}),
        ("ALiBi", {"alibi_slopes": None}),
    ],
    ids=str,
)
def test_an_argument_that_is_dropped_stands_back_loudly(
    form: str, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = attention.ops.paged_attention
    monkeypatch.setattr(attention.ops, "paged_attention", lambda *given, **named: real(*given, **{**named, **fault}))
    impl = _impl(**FORMS[form])
    with pytest.warns(ClientWarning, match="^vllm's Attention computes for itself, portakernel stands back: "):
        found, given = _step(impl)
    assert torch.equal(found, attention.PAGED_ATTENTION.own(impl, *given))
    assert "write_kv_cache" not in {row.op for row in integration.report()}


def test_keys_and_values_in_each_others_place_stand_back_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    real = attention._pages
    monkeypatch.setattr(attention, "_pages", lambda cache: real(cache) if _written() else real(cache)[::-1])
    calls: list[int] = []

    def _written() -> bool:
        calls.append(0)
        return len(calls) % 2 == 1

    with pytest.warns(ClientWarning, match="^vllm's Attention computes for itself, portakernel stands back: "):
        _step(_impl())


def test_the_backend_is_ours_until_disabled() -> None:
    theirs = AttentionBackendEnum.CPU_ATTN
    assert theirs.get_class() is attention.PortakernelCPUAttentionBackend
    integration.enable(["paged_attention"])
    assert theirs.get_class() is attention.PortakernelCPUAttentionBackend
    integration.disable()
    assert theirs.get_class() is cpu_attn.CPUAttentionBackend


def test_another_plugins_backend_is_refused_by_name() -> None:
    integration.disable()
    theirs = f"{__name__}.Backend"
    attention.register_backend(AttentionBackendEnum.CPU_ATTN, theirs)
    try:
        with pytest.raises(attention.AttentionBackendError) as refused:
            integration.enable(["paged_attention"])
        assert str(refused.value) == (
            f"vLLM's backend CPU_ATTN is replaced by {theirs} of another plugin. Leave paged_attention out of the ops,"
            " or that plugin out of VLLM_PLUGINS"
        )
    finally:
        AttentionBackendEnum.CPU_ATTN.clear_override()


def test_on_other_platforms_the_report_says_why_attention_is_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    integration.disable()
    elsewhere = SimpleNamespace(is_cpu=lambda: False, device_name="cuda")
    monkeypatch.setattr(attention, "current_platform", elsewhere)
    reason = "vLLM's backends of cuda answer for captured graphs and cascades, too; the ops were tried on CPUs"
    outcome = integration.enable(["paged_attention"])
    assert [(left.op, left.what, left.reason) for left in outcome.left] == [
        ("paged_attention", "vLLM's attention", reason)
    ]
    (row,) = integration.report()
    assert (row.layer, row.outcome, row.refused) == ("Attention", "left to the client", reason)
