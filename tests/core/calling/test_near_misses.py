"""Calls that are nearly right are refused with what is right, by ops, bind, explain and warmup alike."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.contract import near_misses
from portakernel.contracts import contract, own_contracts
from portakernel.errors import ArgumentTypeError, PortakernelError

X, WEIGHT = torch.randn(4, 8), torch.ones(8)
LAST = "the op works over the last dimension: move another there with x.movedim(dim, -1)"


def refused(call: Callable[[], object], kind: type[PortakernelError] = PortakernelError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.rms_norm(X, WEIGHT, epsilon=1e-5),
            "rms_norm: unknown argument 'epsilon'; here it is called 'eps'",
        ),
        (
            lambda: ops.rms_norm(input=X, weight=WEIGHT),
            "rms_norm: unknown argument 'input'; here it is called 'x'",
        ),
        (
            lambda: ops.rms_norm(X, WEIGHT, epss=1e-5),
            "rms_norm: unknown argument 'epss'; did you mean 'eps'?",
        ),
        (lambda: ops.softmax(X, dim=-1), f"softmax: unknown argument 'dim'; {LAST}"),
        (
            lambda: ops.softmax(X, -1),
            (
                "softmax: only x can be given by position, and -1 was given after; the rest goes by"
                " name, as in out=...;"
                f" if it is a dimension, {LAST}"
            ),
        ),
        (
            lambda: ops.rms_norm(X, WEIGHT, 1e-5),
            (
                "rms_norm: only x, weight can be given by position, and 1e-05 was given after; the"
                " rest goes by name, as"
                " in eps=..."
            ),
        ),
        (
            lambda: ops.attention(X, X, X, is_causal=True),
            "attention: unknown argument 'is_causal'; here it is called 'causal'",
        ),
        (
            lambda: ops.attention(X, X, X, attn_mask=X),
            (
                "attention: unknown argument 'attn_mask'; here it is called 'bias': numbers added to"
                " the scores, -inf where"
                " a key is hidden, of shape (B, H, S, T) without broadcasting"
            ),
        ),
        (
            lambda: ops.cross_entropy(X, WEIGHT, reduction="mean"),
            (
                "cross_entropy: unknown argument 'reduction'; each row's loss is returned: reduce them with .sum() or"
                " .mean(), over the targets that are not ignored"
            ),
        ),
        (
            lambda: ops.merge_attention(X[None], X[:, :1].T, X[None], s_b=X[:, :1]),
            (
                "merge_attention: unknown argument 's_b'; here it is called 'lse_b': natural logarithms (H, S), of"
                " FlashInfer's math.log(2) * s.T"
            ),
        ),
        (
            lambda: ops.merge_attention(X[None], X[:, :1].T, suffix_output=X[None], lse_b=X[:, :1].T),
            "merge_attention: unknown argument 'suffix_output'; here it is called 'b'",
        ),
        (
            lambda: ops.int4_mm(X, X, X, g_idx=X),
            "int4_mm: unknown argument 'g_idx'; here it is called 'order'",
        ),
        (
            lambda: ops.pack_int4(qweight=X, scales=X, order=X, qzeros=X, group_size=128),
            (
                "pack_int4: unknown argument 'qweight'; here it is called 'weight'; unknown argument 'qzeros'; here it"
                " is called 'zeros'; unknown argument 'group_size'; here it is called 'group'"
            ),
        ),
        (
            lambda: ops.merge_attentions(v=X[None, None], lses=X),
            (
                "merge_attentions: unknown argument 'v'; here it is called 'outs': the parts come first, (R, S, H, E),"
                " as in v.transpose(0, 1), which copies nothing"
            ),
        ),
        (
            lambda: ops.mla_decode(X, X, kv_cache=X, scale=1.0),
            (
                "mla_decode: unknown argument 'kv_cache'; here it is called 'latent_cache': one part of a joined cache"
                " (NP, P, C+R), as in cache[..., :C], and rope_cache is the other, cache[..., C:]"
            ),
        ),
        (
            lambda: ops.merge_attentions([X, X], [X, X]),
            "merge_attentions: outs must be a tensor; this is a list of tensors: torch.stack(outs) makes one",
        ),
        (lambda: ops.rms_norm(X), "rms_norm: weight is not given"),
        (lambda: ops.rms_norm(weight=WEIGHT, out=X), "rms_norm: x is not given"),
        (
            lambda: ops.rms_norm(X.numpy(), WEIGHT),
            (
                "rms_norm: arguments of several kinds: x is numpy.ndarray, weight is torch.Tensor; the result is of the"
                " caller's kind, so give all of one, as by numpy.asarray(weight)"
            ),
        ),
        (
            lambda: ops.rms_norm(X, [1.0] * 8),
            (
                "rms_norm: weight must be a tensor; this is list: torch.tensor(weight, dtype=x.dtype, device=x.device)"
                " makes one, best once and not in each call"
            ),
        ),
        (
            lambda: ops.layer_norm(X, WEIGHT, 1.0),
            (
                "layer_norm: bias must be a tensor or None; this is float: x.new_full(x.shape[-1:], bias) makes"
                " one, best once and not"
                " in each call"
            ),
        ),
        (
            lambda: ops.rms_norm(X, torch.nn.LayerNorm(8)),
            (
                "rms_norm: weight must be a tensor; this is the module"
                " torch.nn.modules.normalization.LayerNorm: pass its"
                " parameter, as in weight=module.weight"
            ),
        ),
        (
            lambda: ops.cross_entropy(X, 3),
            "cross_entropy: target must be a tensor; this is int; its shape is (*M)",
        ),
        (
            lambda: ops.layer_norm(X, (8,), WEIGHT),
            (
                "layer_norm: weight must be a tensor; this is tuple: there is no normalized_shape here, the last"
                " dimension is normalised"
            ),
        ),
        (
            lambda: ops.rms_norm(X, (8,), WEIGHT),
            (
                "rms_norm: only x, weight can be given by position, and a tensor was given after; the rest goes by"
                " name, as in eps=...; if a normalized_shape stands before it, leave that out: the last dimension is"
                " normalised"
            ),
        ),
        (
            lambda: ops.quantize_fp8(X, format="row"),
            "quantize_fp8: unknown argument 'format'; here it is called 'granularity'",
        ),
        (
            lambda: ops.rms_norm(X, WEIGHT, training=True),
            (
                "rms_norm: unknown argument 'training'; gradients are recorded where a tensor requires them, as after"
                " x.requires_grad_()"
            ),
        ),
        (lambda: ops.rms_norm(None, WEIGHT), "rms_norm: x must be a tensor; this is None"),
    ],
)
def test_an_op_answers(call, message):
    assert refused(call, ArgumentTypeError) == message


Q, ENDS = torch.randn(16, 2, 8), [0, 16]


@pytest.mark.parametrize(
    ("call", "name", "value", "places"),
    [
        (lambda y: ops.add(X, y), "y", 2.0, {"x": X}),
        (lambda y: ops.add(X.half(), y), "y", 2.0, {"x": X.half()}),
        (lambda weight: ops.rms_norm(X, weight), "weight", 1.0, {"x": X}),
        (lambda weight: ops.rms_norm(X.bfloat16(), weight), "weight", [1.0] * 8, {"x": X.bfloat16()}),
        (lambda bias: ops.layer_norm(X, WEIGHT, bias), "bias", 1, {"x": X}),
        (lambda target: ops.cross_entropy(X, target), "target", [1, 2, 3, 4], {"logits": X}),
        (
            lambda cu_seqlens_q: ops.attention_varlen(Q, Q, Q, cu_seqlens_q, torch.tensor(ENDS, dtype=torch.int32)),
            "cu_seqlens_q",
            ENDS,
            {"q": Q},
        ),
    ],
)
def test_the_tensor_that_is_suggested_is_accepted(call, name, value, places):
    (suggested,) = re.findall(r"; this is \w+: (.*) makes one", refused(lambda: call(value), ArgumentTypeError))
    call(eval(suggested, {"torch": torch, name: value, **places}))


@pytest.mark.parametrize("function", [portakernel.explain, portakernel.warmup])
def test_words_beside_tensors_are_answered_with_what_is_meant(function):
    assert refused(lambda: function("quantize_fp8", X, format="tensor"), ArgumentTypeError) == (
        "quantize_fp8: unknown parameter 'format'; here it is called 'granularity'"
    )


def test_a_warmup_of_tensors_says_how_training_is_asked_for():
    assert refused(lambda: portakernel.warmup("rms_norm", X, WEIGHT, training=True), ArgumentTypeError) == (
        "rms_norm: unknown parameter 'training'; gradients are recorded where a tensor requires them, as after"
        " x.requires_grad_()"
    )


class FromElsewhere:
    """An array of another library."""

    def __dlpack__(self, **_: Any) -> object: ...


def test_arrays_of_other_libraries_have_a_way_in():
    name = f"{__name__}.FromElsewhere"
    assert refused(lambda: ops.rms_norm(FromElsewhere(), WEIGHT)) == (
        f"rms_norm: x must be a tensor; this is {name}: torch.from_dlpack(x) makes one that shares its memory"
    )


@pytest.mark.parametrize("function", [portakernel.bind, portakernel.explain, portakernel.warmup])
def test_what_takes_a_calls_arguments_answers_as_the_op_does(function):
    epsilon = "rms_norm: unknown parameter 'epsilon'; here it is called 'eps'"
    assert refused(lambda: function("rms_norm", X, WEIGHT, epsilon=1e-5)) == epsilon
    array = (
        "rms_norm: a bound handle takes tensors: to convert arrays would cost more than it spares; bind with"
        " torch.from_dlpack(x), made once, and call it with such"
        if function is portakernel.bind
        else "rms_norm: arguments of several kinds: x is numpy.ndarray, weight is torch.Tensor; the result is of the"
        " caller's kind, so give all of one, as by numpy.asarray(weight)"
    )
    assert refused(lambda: function("rms_norm", X.numpy(), WEIGHT)) == array
    assert refused(lambda: function("layer_norm", X)) == "layer_norm: weight is not given"
    assert refused(lambda: function("layer_norm", X, weights=WEIGHT)) == (
        "layer_norm: unknown parameter 'weights'; here it is called 'weight'"
    )
    assert refused(lambda: function("rms_norm", X, WEIGHT, 1e-5)) == (
        "rms_norm: by position it takes x, weight; 3 arguments were given so, and the rest goes by name"
    )


def test_a_question_in_words_answers_too():
    assert refused(lambda: portakernel.explain("softmax", axis=0)) == f"softmax: unknown parameter 'axis'; {LAST}"
    words = {"dtype": "float32", "shape": {"x": (2, 3)}}
    assert refused(lambda: portakernel.warmup("softmax", **words, axis=0)) == (
        f"softmax: unknown parameter 'axis'; {LAST}"
    )


@pytest.mark.parametrize("op", own_contracts())
def test_an_op_refuses_what_its_signature_lacks_and_offers_only_what_it_has(op):
    function = getattr(ops, op)
    accepted = inspect.signature(function).parameters
    assert list(accepted)[:1] == [contract(op).names[0]]
    others = {*near_misses._NAMES, *near_misses._ADVICE} - accepted.keys()
    assert len(others) > 100
    for name in others:
        message = refused(lambda name=name: function(**{name: X}), ArgumentTypeError)
        assert message.startswith(f"{op}: unknown argument {name!r}; ")
        clause = message.partition("; ")[2]
        if found := re.match(r"here it is called '(\w+)'", clause):
            assert found[1] in accepted
        for offered in re.findall(r"'(\w+)'", clause.partition("did you mean ")[2]):
            assert offered in accepted


def test_an_unknown_argument_is_answered_inside_a_compiled_function_too():
    compiled = torch.compile(lambda x, w: ops.rms_norm(x, w, epsilon=1e-5), backend="eager")
    assert refused(lambda: compiled(X, WEIGHT)) == "rms_norm: unknown argument 'epsilon'; here it is called 'eps'"
    torch._dynamo.reset()
