"""Faults that run without an error in diffusers are noticed: a mask that is dropped, a layout, a version, a bypass."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers", reason="make clients CLIENTS=diffusers runs these")

from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor

from portakernel.errors import ClientWarning
from portakernel.integrations import diffusers as integration
from portakernel.integrations import versions
from portakernel.integrations.diffusers import attention, calls, trials

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

MakeModel = Callable[[str], Any]
Counted = Callable[[], dict[str, tuple[int, int]]]


def without_mask(call: calls.Call, *, return_lse: bool = False) -> Any:
    return calls.ours(replace(call, mask=None), return_lse=return_lse)


def with_heads_for_lengths(call: calls.Call, *, return_lse: bool = False) -> Any:
    q, k, v = (each.transpose(1, 2) for each in (call.query, call.key, call.value))
    return calls.ours(call.of(q, k, v, None), return_lse=return_lse).transpose(1, 2)


def with_another_scale(call: calls.Call, *, return_lse: bool = False) -> Any:
    return calls.ours(replace(call, scale=call.query.shape[-1] ** -0.55), return_lse=return_lse)


def plant(fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ours", fault)
    monkeypatch.setattr(trials, "ours", fault)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", [without_mask, with_heads_for_lengths, with_another_scale])
def test_a_backend_that_computes_something_else_stands_back_loudly(
    fault: Callable[..., Any],
    dtype: torch.dtype,
    compiled: bool,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(fault, monkeypatch)
    integration.enable()
    heads = [torch.randn(2, 9, 4, 16, generator=torch.Generator().manual_seed(n)).to(dtype) for n in range(3)]
    mask = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(7)) < 0.5
    mask[..., 0] = True

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return dispatch_attention_fn(q, k, v, attn_mask=mask, backend=backend)

    from diffusers import AttentionBackendName

    backend = AttentionBackendName("portakernel")
    run = torch.compile(attend, backend="eager", fullgraph=True) if compiled else attend
    with pytest.warns(ClientWarning, match="diffusers's attention computes for itself, portakernel stands back: "):
        result = run(*heads)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(*heads), result)
    assert torch.equal(result, dispatch_attention_fn(*heads, attn_mask=mask, backend="native"))
    (reason,) = counted()
    assert "ulp off on average" in reason
    assert counted()[reason] == ((0, 1) if compiled else (2, 0))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda distribution: "0.43.0")
    for function in (integration.enable, integration.disable, integration.report):
        with pytest.raises(integration.UnsupportedVersionError) as raised:
            function()
        assert str(raised.value) == (
            "portakernel.integrations.diffusers was tested with diffusers ==0.42.1; 0.43.0 is installed, whose"
            " extension points may differ. Install a tested version"
        )
    monkeypatch.undo()
    from diffusers import AttentionBackendName

    assert "portakernel" not in set(AttentionBackendName)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_that_is_set_to_another_backend_is_warned_of_after_its_first_step(
    compiled: bool, make_model: MakeModel
) -> None:
    model = make_model("Flux").at(torch.float32)
    integration.enable(model.module)
    model.module.set_attention_backend("native")
    run = torch.compile(model.module, backend="eager", fullgraph=True) if compiled else model.module
    reason = (
        'FluxTransformer2DModel is set to the backend native; call its set_attention_backend("portakernel"), or set'
        " DIFFUSERS_ATTN_BACKEND=portakernel"
    )
    with torch.no_grad(), pytest.warns(ClientWarning) as caught:
        model(run)
    assert [str(each.message) for each in caught] == [f"portakernel's attention is enabled and bypassed: {reason}"]
    (row,) = integration.report()
    assert (row.layer, row.outcome, row.refused) == ("FluxTransformer2DModel", "bypassed", reason)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        model(run)
        model.module.set_attention_backend("portakernel")
        model()
    assert [row.outcome for row in integration.report()] == ["served"]


@pytest.mark.parametrize("made", ["before", "after"])
def test_a_model_that_nobody_set_is_warned_of_after_its_first_step(made: str, make_model: MakeModel) -> None:
    model = make_model("Wan") if made == "before" else None
    integration.enable()
    model = model or make_model("Wan")
    with torch.no_grad(), pytest.warns(ClientWarning) as caught:
        model()
    assert [str(each.message) for each in caught] == [
        (
            "portakernel's attention is enabled and bypassed: WanTransformer3DModel is set to the backend native; call"
            ' its set_attention_backend("portakernel"), or set DIFFUSERS_ATTN_BACKEND=portakernel'
        )
    ]


def test_a_model_that_no_backend_reaches_is_warned_of_after_its_first_step(make_model: MakeModel) -> None:
    integration.enable()
    model = make_model("UNet")
    model.module.set_attention_backend("portakernel")  # diffusers accepts it, and changes nothing
    with torch.no_grad(), pytest.warns(ClientWarning) as caught:
        model()
    assert [str(each.message) for each in caught] == [
        (
            "portakernel's attention is enabled and bypassed: UNet2DConditionModel's processors (AttnProcessor2_0) call"
            " torch's attention themselves, no backend of diffusers reaches them; where they are AttnProcessor2_0,"
            " portakernel.integrations.diffusers.enable(model) mends that"
        )
    ]
