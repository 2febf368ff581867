"""What is refused, and what to do instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.calling.arguments import Arguments
from portakernel.calling.arrays import calls
from portakernel.calling.arrays.devices import torch_device
from portakernel.contracts import contract
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.runtime import dispatcher

X = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
WEIGHT = np.random.default_rng(2).standard_normal(8).astype(np.float32)


def refused(call, error=(ArgumentTypeError, ArgumentValueError)) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


class Mine(np.ndarray):
    pass


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


FIELD = np.zeros(8, [("a", "f4"), ("b", "i2")])["a"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.rms_norm(X, torch.from_numpy(WEIGHT)),
            (
                "rms_norm: arguments of several kinds: x is numpy.ndarray, weight is torch.Tensor; the result is of the"
                " caller's kind, so give all of one, as by numpy.asarray(weight)"
            ),
        ),
        (
            lambda: ops.add_rms_norm(torch.from_numpy(X), X, WEIGHT),
            (
                "add_rms_norm: arguments of several kinds: x is torch.Tensor, residual is numpy.ndarray, weight is"
                " numpy.ndarray; the result is of the caller's kind, so give all of one, as by"
                " torch.from_dlpack(residual) and torch.from_dlpack(weight)"
            ),
        ),
        (
            lambda: ops.rms_norm(torch.from_numpy(X), torch.from_numpy(WEIGHT), out=X.copy()),
            (
                "rms_norm: arguments of several kinds: x is torch.Tensor, weight is torch.Tensor, out is numpy.ndarray;"
                " the result is of the caller's kind, so give all of one, as by torch.from_dlpack(out)"
            ),
        ),
        (
            lambda: ops.rms_norm(X, WEIGHT, out=torch.empty(4, 8)),
            (
                "rms_norm: arguments of several kinds: x is numpy.ndarray, weight is numpy.ndarray, out is"
                " torch.Tensor; the result is of the caller's kind, so give all of one, as by numpy.asarray(out)"
            ),
        ),
        (lambda: ops.rms_norm(X, [1.0]), "rms_norm: weight must be numpy.ndarray, as x is; this is list"),
        (
            lambda: ops.rms_norm(X, np.float32(1)),
            "rms_norm: weight must be numpy.ndarray, as x is; this is numpy.float32",
        ),
        (lambda: ops.rms_norm(X), "rms_norm: weight is not given"),
        (lambda: ops.rms_norm(X, None), "rms_norm: weight must be a tensor; this is None"),
        (
            lambda: ops.rms_norm(X[:, ::-1], WEIGHT),
            (
                "rms_norm: x has a negative stride, which tensors have not; numpy.ascontiguousarray(x) is a copy"
                " without"
            ),
        ),
        (
            lambda: ops.rms_norm(X.astype(">f4"), WEIGHT),
            (
                "rms_norm: x is of the other byte order ('>f4'); x.astype(x.dtype.newbyteorder('=')) makes one of this"
                " machine's"
            ),
        ),
        (
            lambda: ops.rms_norm(X, FIELD),
            (
                "rms_norm: weight has strides that are no multiples of its elements' size, as a field of a structured"
                " array has; numpy.ascontiguousarray(weight) is a copy without"
            ),
        ),
        (
            lambda: ops.rms_norm(np.ma.masked_less(X, 0), WEIGHT),
            "rms_norm: x is a masked array, whose mask a kernel would not see; fill it first: x.filled(0)",
        ),
        (
            lambda: ops.rms_norm(X, WEIGHT.view(Mine)),
            (
                "rms_norm: weight is of Mine, a subclass of numpy.ndarray whose own ways a kernel cannot follow;"
                " weight.view(numpy.ndarray) is the plain array"
            ),
        ),
        (
            lambda: ops.rms_norm(X.astype("c8"), WEIGHT),
            "rms_norm: x has dtype complex64, which no op takes; accepted: float32, float16, bfloat16",
        ),
        (
            lambda: ops.rms_norm(np.array([["a"]]), WEIGHT),
            "rms_norm: x has dtype str32, which no op takes; accepted: float32, float16, bfloat16",
        ),
        (
            lambda: ops.rms_norm(X, WEIGHT, out=read_only(X)),
            (
                "rms_norm: out is to be written, but is read-only (flags.writeable is False); give an array that may be"
                " written: out.copy(); or leave out= away"
            ),
        ),
        (
            lambda: ops.add_rms_norm(X, X, WEIGHT, out=(X.copy(), read_only(X))),
            (
                "add_rms_norm: out[1] is to be written, but is read-only (flags.writeable is False); give an array that"
                " may be written: out[1].copy(); or leave out= away"
            ),
        ),
        (
            lambda: ops.write_kv_cache(
                X.reshape(4, 1, 8), X.reshape(4, 1, 8), read_only(np.zeros((1, 4, 1, 8), "f4")),
                np.zeros((1, 4, 1, 8), "f4"), np.arange(4),
            ),
            (
                "write_kv_cache: key_cache is written in place, but is read-only (flags.writeable is False); give an"
                " array that may be written: key_cache.copy()"
            ),
        ),
        (
            lambda: portakernel.bind("rms_norm", X, WEIGHT),
            (
                "rms_norm: a bound handle takes tensors: to convert arrays would cost more than it spares; bind with"
                " torch.from_dlpack(x) and torch.from_dlpack(weight), made once, and call it with such"
            ),
        ),
        (
            lambda: portakernel.bind("rms_norm", torch.from_numpy(X), torch.from_numpy(WEIGHT))(X, WEIGHT),
            "rms_norm: x must be a tensor; this is numpy.ndarray: torch.from_numpy(x) makes one that shares its memory",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_served_says_what_to_do(call, message):
    assert refused(call) == message


@pytest.mark.parametrize("part", [slice(1, None), slice(None, -1)], ids=["after", "before"])
def test_out_that_lies_over_an_input_is_refused_as_for_tensors(part):
    """Memory is shared, so that the check of tensors sees the arrays' own; nothing is written."""
    memory = np.arange(40, dtype=np.float32).reshape(5, 8)
    other = slice(None, -1) if part.start else slice(1, None)
    before = memory.copy()
    message = refused(lambda: ops.rms_norm(memory[part], WEIGHT, out=memory[other]))
    assert message == "rms_norm: out shares memory with x; it may be x itself, or separate memory"
    tensors = torch.from_numpy(memory)
    assert message == refused(lambda: ops.rms_norm(tensors[part], torch.from_numpy(WEIGHT), out=tensors[other]))
    assert np.array_equal(memory, before)


def test_out_that_may_not_be_the_input_is_refused_as_for_tensors():
    square = np.ones((4, 4), np.float32)
    message = refused(lambda: ops.linear_act(square, square, out=square))
    tensor = torch.from_numpy(square)
    assert message == refused(lambda: ops.linear_act(tensor, tensor, out=tensor))
    assert message == "linear_act: out shares memory with x; it may be none of the inputs, or separate memory"


def test_out_of_another_shape_or_dtype_is_refused_as_for_tensors():
    assert refused(lambda: ops.rms_norm(X, WEIGHT, out=X[:2].copy())) == (
        "rms_norm: out has shape (2, 8); the result has (4, 8)"
    )
    assert refused(lambda: ops.rms_norm(X, WEIGHT, out=X.astype("f8"))) == (
        "rms_norm: out has dtype torch.float64; the result has torch.float32"
    )


def test_jax_and_numpy_do_not_mix():
    jax = pytest.importorskip("jax")
    assert refused(lambda: ops.rms_norm(jax.numpy.asarray(X), WEIGHT)) == (
        "rms_norm: arguments of several kinds: x is jax.Array, weight is numpy.ndarray; the result is of the caller's"
        " kind, so give all of one, as by jax.numpy.asarray(weight)"
    )


class OnDevice:
    """An array of no library, on a device of DLPack's."""

    def __init__(self, kind: int, error: Exception | None = None) -> None:
        self.kind, self.error = kind, error

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.error is not None:
            raise self.error
        return self.kind, 3


@pytest.mark.parametrize(
    ("kind", "word"),
    [(4, "kDLOpenCL:3"), (8, "kDLMetal:3"), (13, "kDLCUDAManaged:3"), (14, "kDLOneAPI:3"), (99, "DLDeviceType 99:3")],
)
def test_a_device_that_no_backend_knows_is_refused(kind, word):
    registry = dispatcher().registry
    message = refused(lambda: torch_device("softmax", "x", OnDevice(kind), registry))
    assert message.startswith(f"softmax: x is on {word}, a device that no backend here serves; move it to one of ")
    assert "cpu" in message


def test_a_device_without_a_name_in_dlpack_is_refused():
    array = OnDevice(1, BufferError("__dlpack__ device only supported for CPU and GPU"))
    message = refused(lambda: torch_device("softmax", "x", array, dispatcher().registry))
    assert message.startswith(
        "softmax: x is on a device that DLPack has no name for (__dlpack__ device only supported for CPU and GPU);"
    )


def test_what_dlpack_cannot_give_away_is_told_in_the_librarys_words(monkeypatch):
    class Refusing(calls.NumPyArrays):
        def taken(self, array, queue):
            raise BufferError("not today")

    monkeypatch.setattr(calls, "LIBRARIES", (Refusing(),))
    assert refused(lambda: ops.softmax(X)) == "softmax: NumPy does not give x away by DLPack: not today"


class TestNarrowedIntegers:
    """JAX makes 32 bits of 64 without a word: an op whose result has 64 is refused, before it runs."""

    @pytest.fixture
    def wide(self):
        """moe_sort, were its three results of 64 bits; or of what a parameter says."""
        jax = pytest.importorskip("jax")
        described = contract("moe_sort")
        ran = []

        def call(*tensors: Any, out: Any, kernel: Any, **named: Any) -> Any:
            ran.append(named)
            return tuple(torch.full((64,), 2**40 + place) for place in range(3))

        def serve(dtype: str, *parameters: Any) -> Any:
            outputs = tuple(replace(output, dtype=dtype) for output in described.outputs)
            changed = replace(described, outputs=outputs, parameters=(*described.parameters, *parameters))
            arguments = Arguments(changed, dispatcher().registry)
            given = {"num_experts": 4, "capacity": 64, "wide": "int64"}
            values = arguments.canonical([given.get(p.name, p.default) for p in changed.parameters])
            return calls.ArrayCalls(arguments, call).serve((jax.numpy.zeros((4, 2), "int32"),), values, None, None)

        return serve, ran

    def test_they_are_refused_before_the_op_runs(self, wide):
        serve, ran = wide
        assert refused(lambda: serve("int64")) == (
            "moe_sort: order is int64, which JAX's arrays cannot be now; JAX would make 32 bits of it without a word:"
            " jax.config.update('jax_enable_x64', True)"
        )
        assert ran == []

    def test_where_the_op_can_give_32_bits_that_is_offered(self, wide):
        serve, _ = wide
        held = next(p for p in contract("quantize_fp8").parameters if p.kind == "dtype")
        holder = replace(held, name="wide", choices=("int64", "int32"), default="int64")
        assert refused(lambda: serve("wide", holder)) == (
            "moe_sort: order is int64, which JAX's arrays cannot be now; JAX would make 32 bits of it without a word:"
            " jax.config.update('jax_enable_x64', True), or ask for wide='int32'"
        )

    def test_with_64_bits_in_jax_they_are_handed_back_whole(self, wide):
        jax = pytest.importorskip("jax")
        serve, _ = wide
        with jax.enable_x64(True):
            results = serve("int64")
        assert [(str(result.dtype), int(result[0])) for result in results] == [
            ("int64", 2**40 + place) for place in range(3)
        ]

    def test_without_the_refusal_numbers_would_be_lost(self, wide, monkeypatch):
        """The fault: what the other tests keep from happening."""
        serve, _ = wide
        monkeypatch.setattr(calls.JaxArrays, "missing", lambda *_: {})
        assert [(str(result.dtype), int(result[0])) for result in serve("int64")] == [
            ("int32", place) for place in range(3)
        ]


def test_without_ml_dtypes_numpy_has_no_small_floats(monkeypatch):
    monkeypatch.setattr("portakernel.calling.arrays.numpy_arrays.find_ml_dtypes", lambda: False)
    assert refused(lambda: ops.quantize_fp8(X)) == (
        "quantize_fp8: q is float8_e4m3fn, which NumPy's arrays cannot be now; NumPy has it through the package"
        " ml_dtypes: pip install ml_dtypes"
    )
