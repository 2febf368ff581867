"""What was built, and for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from portakernel import runtime
from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.contracts import contract, own_contracts
from portakernel.deciding.asking import ask
from portakernel.deciding.builds import Builds, unit_names
from portakernel.words.target import Device, Target

KERNEL = runtime.dispatcher().registry.kernels["inductor.layer_norm"]
LAYER_NORM = contract("layer_norm")


def asked(n: int = 64, m: int = 4, dtype: str = "bfloat16", **more: object) -> Request:
    target = Target("cpu", "x86_64")
    device = Device(target, name="cpu", torch_device="cpu")
    return replace(ask(LAYER_NORM, target, dtypes=dtype, shapes={"x": (m, n), "weight": (n,)}, device=device), **more)


@pytest.fixture
def builds() -> Builds:
    made = Builds()
    made.remember(LAYER_NORM, KERNEL, asked())
    return made


def test_a_build_serves_other_leading_dimensions(builds):
    assert builds.rejection(LAYER_NORM, KERNEL, asked(m=999)) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (asked(n=65), "dtype='bfloat16', shape={'x': (4, 65)}, device='cpu'"),
        (asked(dtype="float16"), "dtype='float16', shape={'x': (4, 64)}, device='cpu'"),
        (asked(phase=Phase.TRAINING), "dtype='bfloat16', shape={'x': (4, 64)}, device='cpu', training=True"),
        (asked(values={"eps": 0.5}), "dtype='bfloat16', shape={'x': (4, 64)}, eps=0.5, device='cpu'"),
    ],
)
def test_a_build_serves_no_other_size_dtype_phase_or_value_and_the_advice_says_which(builds, other, words):
    rejection = builds.rejection(LAYER_NORM, KERNEL, other)
    text = f'is not built for these sizes, dtypes and values; portakernel.warmup("layer_norm", {words}) builds it'
    assert rejection == Rejection(ReasonCode.NEEDS_BUILD, text)


def test_a_kernel_without_a_build_needs_none(builds):
    assert builds.rejection(LAYER_NORM, replace(KERNEL, build=None), asked(n=65)) is None


def test_backward_does_not_know_whether_an_argument_that_it_does_not_read_was_there(builds):
    with_bias = {"x": "bfloat16", "weight": "bfloat16", "bias": "bfloat16"}
    builds.remember(LAYER_NORM, KERNEL, asked(phase=Phase.BACKWARD))
    assert builds.rejection(LAYER_NORM, KERNEL, asked(phase=Phase.BACKWARD, dtypes=with_bias)) is None
    assert builds.rejection(LAYER_NORM, KERNEL, asked(dtypes=with_bias)) is not None


def test_a_build_that_failed_is_the_reason_until_one_succeeds(builds):
    reason = Rejection(ReasonCode.CANNOT_RUN, "no compiler takes it")
    builds.remember_failure(LAYER_NORM, KERNEL, asked(n=65), reason)
    assert builds.rejection(LAYER_NORM, KERNEL, asked(n=65)) is reason
    builds.remember(LAYER_NORM, KERNEL, asked(n=65))
    assert builds.rejection(LAYER_NORM, KERNEL, asked(n=65)) is None


def test_a_symbol_of_a_traced_graph_is_no_size_that_was_built(builds):
    class Symbol:
        __hash__ = None

    rejection = builds.rejection(LAYER_NORM, KERNEL, asked(dims={"M": 4, "N": Symbol()}))
    assert rejection is not None
    assert rejection.code is ReasonCode.NEEDS_BUILD


@pytest.mark.parametrize("op", own_contracts())
def test_the_dimensions_of_a_build_are_those_that_every_call_has(op):
    names = unit_names(contract(op).at())
    assert set(names) <= set(contract(op).fixed_dims)


def test_what_is_built_for_one_size_is_in_no_other_sizes_key():
    from portakernel.calling.fast.claim_reads import Reads
    from portakernel.calling.fast.expressions import expressions
    from portakernel.calling.fast.keys import make_key

    torch = pytest.importorskip("torch")
    units = {(64, 1e-5)}
    key = make_key(LAYER_NORM, expressions(LAYER_NORM, Reads(), units))
    parts = {n: key(torch.zeros(2, n), torch.zeros(n), None, 1e-5)[-1] for n in (64, 65, 66)}
    assert parts == {64: (64, 1e-5), 65: None, 66: None}
    units.add((65, 1e-5))
    assert key(torch.zeros(2, 65), torch.zeros(65), None, 1e-5)[-1] == (65, 1e-5)
