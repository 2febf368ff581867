"""Each argument of diffusers' dispatch is served, left to native attention and counted, or refused; none is dropped."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("diffusers", reason="make clients CLIENTS=diffusers runs these")

from diffusers import AttentionBackendName
from diffusers.models.attention_dispatch import dispatch_attention_fn

from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.integrations import diffusers as integration

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

Counted = Callable[[], dict[str, tuple[int, int]]]
B, S, T, H, D = 2, 7, 11, 4, 16


def heads(queries: int = S, keys: int = T, groups: int = H, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(queries + 31 * keys)
    shapes = (B, queries, H, D), (B, keys, groups, D), (B, keys, groups, D)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def hidden(*shape: int) -> Tensor:
    """A mask of booleans in which every query sees the first key."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.6
    mask[..., 0] = True
    return mask


def both(*tensors: Tensor, **named: Any) -> tuple[Any, Any]:
    integration.enable()
    return tuple(dispatch_attention_fn(*tensors, **named, backend=name) for name in ("portakernel", "native"))


MASKS = {
    "keys of each batch": hidden(B, T),
    "queries and keys": hidden(S, T),
    "of each head": hidden(H, S, T),
    "of each batch": hidden(B, 1, S, T),
    "of keys, four dimensions": hidden(B, 1, 1, T),
    "of all": hidden(B, H, S, T),
}


@pytest.mark.parametrize("form", ["booleans", "numbers"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_hides_what_it_hides_natively(name: str, form: str, counted: Counted) -> None:
    mask = MASKS[name]
    if form == "numbers":
        mask = torch.randn(mask.shape).masked_fill(~mask, float("-inf"))
    result, native = both(*heads(), attn_mask=mask)
    torch.testing.assert_close(result, native)
    assert (result - dispatch_attention_fn(*heads(), backend="native")).abs().max() > 1e-3
    assert counted() == {"": (1, 0)}


def test_one_graph_serves_several_lengths(counted: Counted) -> None:
    integration.enable()
    backend = AttentionBackendName("portakernel")

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
        return dispatch_attention_fn(q, k, v, attn_mask=mask, backend=backend)

    run = torch.compile(attend, backend="aot_eager", fullgraph=True)
    for queries, keys in ((7, 11), (8, 24), (13, 40)):
        mask, tensors = hidden(B, 1, queries, keys), heads(queries, keys)
        for tensor, place in (*((each, 1) for each in tensors), (mask, 2), (mask, 3)):
            torch._dynamo.mark_dynamic(tensor, place)
        result = run(*tensors, mask)
        torch.testing.assert_close(result, dispatch_attention_fn(*tensors, attn_mask=mask, backend="native"))
    assert counted() == {"": (0, 1)}


def test_a_mask_of_keys_is_one_also_where_there_are_as_many_queries_as_batches(counted: Counted) -> None:
    result, native = both(*heads(queries=B), attn_mask=hidden(B, T))
    torch.testing.assert_close(result, native)
    assert counted() == {"": (1, 0)}


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        (heads(groups=2), {"enable_gqa": True}),
        (heads(), {"scale": 0.5}),
        (heads(keys=S), {"is_causal": True}),
        (heads(groups=1), {"enable_gqa": True, "attn_mask": hidden(S, T)}),
    ],
    ids=["grouped heads", "a scale", "causal", "one key head and a mask"],
)
def test_what_native_attention_has_is_served(tensors: list[Tensor], named: dict[str, Any], counted: Counted) -> None:
    result, native = both(*tensors, **named)
    torch.testing.assert_close(result, native)
    assert counted() == {"": (1, 0)}


def test_half_precision_under_autocast_is_native_s(counted: Counted) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        result, native = both(*heads(), attn_mask=hidden(B, T))
    assert result.dtype == native.dtype == torch.bfloat16
    torch.testing.assert_close(result, native)
    assert counted() == {"": (1, 0)}


def test_a_window_is_flash_attention_s(counted: Counted) -> None:
    integration.enable()
    q, k, v = heads()
    window = {"window_size": (2, 1)}
    result = dispatch_attention_fn(q, k, v, attention_kwargs=window, backend="portakernel")
    place = torch.arange(S)[:, None] + T - S - torch.arange(T)[None, :]  # the last query stands at the last key
    seen = (place <= 2) & (place >= -1)
    torch.testing.assert_close(result, dispatch_attention_fn(q, k, v, attn_mask=seen, backend="native"))
    assert counted() == {"": (1, 0)}


def test_the_log_sum_exp_is_returned_beside_the_result() -> None:
    integration.enable()
    q, k, v = heads()
    result, lse = dispatch_attention_fn(q, k, v, attention_kwargs={"return_lse": True}, backend="portakernel")
    torch.testing.assert_close(result, dispatch_attention_fn(q, k, v, backend="native"))
    torch.testing.assert_close(lse, torch.einsum("bshd,bthd->bhst", q, k).mul(D**-0.5).logsumexp(-1))


@pytest.mark.parametrize(
    ("tensors", "named", "reason"),
    [
        (
            heads(),
            {"is_causal": True},
            "causal with as many queries as keys alone: torch aligns others at the top left, the op at the bottom",
        ),
        (heads(dtype=torch.float64), {}, "dtype torch.float64: the op takes float32, float16 and bfloat16"),
        (heads(groups=1), {}, "fewer key heads without enable_gqa"),
    ],
    ids=["causal with more keys", "float64", "heads that torch broadcasts"],
)
def test_what_the_op_lacks_is_native_s_and_counted(
    tensors: list[Tensor], named: dict[str, Any], reason: str, counted: Counted
) -> None:
    result, native = both(*tensors, **named)
    assert torch.equal(result, native)
    assert counted() == {reason: (1, 0)}


def test_dropout_is_native_s_and_counted(counted: Counted) -> None:
    integration.enable()
    results = []
    for name in ("portakernel", "native"):
        torch.manual_seed(3)
        results.append(dispatch_attention_fn(*heads(), dropout_p=0.4, backend=name))
    assert torch.equal(*results)
    assert counted() == {"dropout: the op has none": (1, 0)}


def test_a_window_that_is_left_is_not_lost(counted: Counted) -> None:
    integration.enable()
    tensors = heads(dtype=torch.float64)
    result = dispatch_attention_fn(*tensors, attention_kwargs={"window_size": (2, 1)}, backend="portakernel")
    place = torch.arange(S)[:, None] + T - S - torch.arange(T)[None, :]
    seen = (place <= 2) & (place >= -1)
    torch.testing.assert_close(result, dispatch_attention_fn(*tensors, attn_mask=seen, backend="native"))
    assert list(counted()) == ["dtype torch.float64: the op takes float32, float16 and bfloat16"]


def test_context_parallelism_is_native_s_and_counted(counted: Counted) -> None:
    integration.enable()
    degrees = SimpleNamespace(ring_degree=1, ulysses_degree=1)
    config: Any = SimpleNamespace(context_parallel_config=degrees)
    with pytest.raises(ValueError, match="Reaching this branch of code is unexpected"):  # diffusers' own, of one rank
        dispatch_attention_fn(*heads(), backend="portakernel", parallel_config=config)
    assert counted() == {"context parallelism: the op sees one rank's keys": (1, 0)}


def test_an_argument_that_nobody_reads_is_an_error() -> None:
    integration.enable()
    with pytest.raises(ArgumentTypeError) as raised:
        dispatch_attention_fn(*heads(), attention_kwargs={"num_splits": 2}, backend="portakernel")
    assert str(raised.value) == (
        "diffusers' attention was given num_splits, which the backend portakernel does not know and would have to drop;"
        " it knows attn_mask, dropout_p, is_causal, scale, enable_gqa, return_lse and window_size. Leave it out of"
        " attention_kwargs, or set the backend that it belongs to with set_attention_backend"
    )


def test_a_mask_that_is_no_tensor_is_an_error() -> None:
    integration.enable()
    mask: Any = SimpleNamespace()
    with pytest.raises(ArgumentTypeError) as raised:
        dispatch_attention_fn(*heads(), attn_mask=mask, backend="portakernel")
    assert str(raised.value) == (
        "diffusers' attention was given a mask of type SimpleNamespace; the backend portakernel takes tensors. A"
        ' BlockMask belongs to set_attention_backend("flex")'
    )


def test_a_log_sum_exp_that_nobody_can_give_is_an_error() -> None:
    integration.enable()
    lse = {"return_lse": True}
    with pytest.raises(ArgumentValueError) as raised:
        dispatch_attention_fn(*heads(), dropout_p=0.5, attention_kwargs=lse, backend="portakernel")
    assert str(raised.value) == (
        "return_lse: portakernel's op does not serve this call (dropout: the op has none), and diffusers' native"
        " attention returns no log-sum-exp; ask for the result alone"
    )


def test_checks_that_diffusers_is_told_to_make_find_nothing_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from diffusers.models import attention_dispatch

    monkeypatch.setattr(attention_dispatch._AttentionBackendRegistry, "_checks_enabled", True)
    monkeypatch.setattr(attention_dispatch.logger, "warning", pytest.fail)
    integration.enable()
    given = {"return_lse": True, "window_size": (1, 1)}
    dispatch_attention_fn(*heads(), attn_mask=hidden(B, T), attention_kwargs=given, backend="portakernel")
