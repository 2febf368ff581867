"""The judge takes served calls of any op as they are: right results are right, one wrong element is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from portakernel import ops
from portakernel.claims.request import Phase
from portakernel.runtime import caller
from portakernel.tuning.record import Verdict
from portakernel_kit.shadow import judge
from portakernel_kit.tune import judging


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


ANGLES = torch.arange(12.0)[:, None] * torch.arange(1, 9)[None] / 16
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "add": ((randn(6, 8), randn(6, 8)), {}),
    "rms_norm": ((randn(6, 64), randn(64)), {"eps": 1e-5, "weight_offset": 1.0}),
    "add_rms_norm": ((randn(6, 64), randn(6, 64), randn(64)), {}),
    "layer_norm": ((randn(6, 64), randn(64), randn(64)), {}),
    "silu_and_mul": ((randn(6, 64),), {}),
    "gelu_and_mul": ((randn(6, 64),), {}),
    "softmax": ((randn(6, 64, dtype=torch.float32),), {}),
    "linear_act": ((randn(6, 64), randn(32, 64), randn(32)), {"activation": "silu"}),
    "attention": ((randn(1, 6, 4, 16), randn(1, 9, 2, 16), randn(1, 9, 2, 16)), {}),
    "rotary_embedding": ((randn(12, 4, 16), randn(12, 2, 16), ANGLES.cos(), ANGLES.sin()), {}),
    "cross_entropy": ((randn(6, 64, dtype=torch.float32), torch.arange(6)), {}),
    "moe_route": ((randn(6, 8, dtype=torch.float32),), {"k": 2}),
    "quantize_fp8": ((randn(6, 64),), {}),
}


def served(op: str, *tensors: Any, change: Any = None, **parameters: Any) -> tuple[Verdict, str]:
    """The verdict on what ``op`` returns for these arguments, which ``change`` makes another."""
    with torch.no_grad():
        returned = getattr(ops, op)(*tensors, **parameters)
    results = list(returned) if isinstance(returned, tuple) else [returned]
    asked = caller(op)
    given = [*tensors, *(None for _ in asked.contract.names[len(tensors) :])]
    values = list(asked.contract.values(parameters).values())
    if change is not None:
        results[0] = change(results[0].clone())
    return judge(asked, asked.explain(given, values, Phase.INFERENCE), given, values, results)


def spoilt(result: torch.Tensor) -> torch.Tensor:
    flat = result.view(-1).view(torch.uint8)
    # another sign or exponent, in whatever format
    flat[-1] ^= 0x50
    return result


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
@pytest.mark.parametrize("op", CALLS)
def test_right_results_are_right_and_one_wrong_element_is_not(op):
    tensors, parameters = CALLS[op]
    assert served(op, *tensors, **parameters) == (Verdict.RIGHT, "")
    verdict, detail = served(op, *tensors, change=spoilt, **parameters)
    assert verdict is Verdict.WRONG
    assert detail != ""


@pytest.mark.parametrize("special", [float("nan"), float("inf"), 0.0, 1e-40, 2.0**55])
def test_special_numbers_are_no_mismatch(special):
    x = randn(6, 64, dtype=torch.float32)
    x[2, 3], x[4] = special, special
    assert served("rms_norm", x, randn(64, dtype=torch.float32)) == (Verdict.RIGHT, "")
    assert served("add", x, x) == (Verdict.RIGHT, "")
    assert served("softmax", x) == (Verdict.RIGHT, "")


def test_numbers_whose_squares_overflow_are_no_mismatch_of_kernels_that_square_them():
    x = randn(6, 64, dtype=torch.float32)
    x[4] = 3e38
    verdict, detail = served("rms_norm", x, randn(64, dtype=torch.float32))
    assert verdict is Verdict.UNJUDGED
    assert detail == "x has numbers beyond 2**55, whose squares float32 cannot sum"
    assert served("softmax", x) == (Verdict.RIGHT, "")


def test_nothing_is_judged_of_nothing():
    assert served("add", randn(0, 8), randn(0, 8))[0] in (Verdict.RIGHT, Verdict.UNJUDGED)


def test_tensors_that_are_not_contiguous_are_judged_as_they_are():
    x = randn(64, 6).t()
    assert served("rms_norm", x, randn(64)) == (Verdict.RIGHT, "")


def test_of_large_calls_rows_are_judged_and_a_wrong_row_among_them_is_found(monkeypatch):
    monkeypatch.setattr(judging, "_FEW_ELEMENTS", 1 << 10)
    x, weight = randn(300, 64), randn(64)
    assert served("rms_norm", x, weight) == (Verdict.RIGHT, "")

    def last_row(y: torch.Tensor) -> torch.Tensor:
        y[-1] += 1.0
        return y

    assert served("rms_norm", x, weight, change=last_row)[0] is Verdict.WRONG


def test_what_takes_the_host_more_than_seconds_is_not_judged(monkeypatch):
    monkeypatch.setattr(judging, "MOST_FLOPS", 10)
    verdict, detail = served("softmax", randn(6, 64, dtype=torch.float32))
    assert verdict is Verdict.UNJUDGED
    assert detail.endswith("GFLOP are too many for the reference in float64")
