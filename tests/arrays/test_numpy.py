"""Calls with NumPy's arrays: the results of tensors, bit for bit, as NumPy's arrays."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from array_calls import as_bytes, as_numpy, copied, small_calls

import portakernel
from portakernel import ops
from portakernel.contracts import contract, own_contracts


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
@pytest.mark.parametrize("op", own_contracts())
def test_every_op_gives_of_arrays_what_it_gives_of_tensors(op):
    calls, function = small_calls(op, 8), getattr(ops, op)
    assert len(calls) >= 4
    for call in calls:
        # where nothing is written, on the same memory: some kernels go by addresses, and so do their last bits
        apart = copied if contract(op).mutated else lambda tensor: tensor
        tensors, named = call.given(apart)
        arrays, array_named = call.given(lambda tensor: as_numpy(apart(tensor)))  # noqa: B023 - called at once
        wanted, got = function(*tensors, **named), function(*arrays, **array_named)
        assert type(got) is (np.ndarray if isinstance(wanted, torch.Tensor) else type(wanted))
        if wanted is not None:
            assert as_bytes(got) == as_bytes(wanted)
            continue
        for tensor, array in zip([*tensors, *named.values()], [*arrays, *array_named.values()], strict=True):
            if isinstance(tensor, torch.Tensor):
                assert as_bytes(array) == as_bytes(tensor)


def test_a_result_is_an_array_of_its_own_that_may_be_written():
    y = ops.rms_norm(normal(3, 8), normal(8))
    assert type(y) is np.ndarray
    assert y.flags.writeable
    y[:] = 0


def test_out_is_written_and_returned_itself():
    x, weight = normal(3, 8), normal(8)
    out = np.empty_like(x)
    assert ops.rms_norm(x, weight, out=out) is out
    assert as_bytes(out) == as_bytes(ops.rms_norm(x, weight))


def test_out_of_several_results_is_a_tuple_of_arrays():
    x, residual, weight = normal(3, 8), normal(3, 8) + 1, normal(8)
    wanted = ops.add_rms_norm(torch.from_numpy(x), torch.from_numpy(residual), torch.from_numpy(weight))
    out = (x, residual)
    assert ops.add_rms_norm(x, residual, weight, out=out) is out
    assert as_bytes(out) == as_bytes(wanted)


def test_out_may_be_an_argument_where_the_op_allows_it_for_tensors():
    x, weight = normal(3, 8), normal(8)
    wanted = ops.rms_norm(torch.from_numpy(x.copy()), torch.from_numpy(weight))
    assert ops.rms_norm(x, weight, out=x) is x
    assert as_bytes(x) == as_bytes(wanted)


def test_an_op_that_writes_its_arguments_writes_arrays():
    key = normal(2, 1, 4)
    caches = np.zeros((3, 2, 1, 4), np.float32), np.zeros((3, 2, 1, 4), np.float32)
    assert ops.write_kv_cache(key, key + 1, *caches, np.array([4, 1])) is None
    assert np.array_equal(caches[0].reshape(6, 4)[[4, 1]], key[:, 0])
    assert np.array_equal(caches[1].reshape(6, 4)[[4, 1]], key[:, 0] + 1)


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_arrays_without_elements_are_served(shape):
    y = ops.rms_norm(np.empty(shape, np.float32), normal(8))
    assert (type(y), y.shape, y.dtype) == (np.ndarray, shape, np.float32)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::2],
        lambda x: x[::2, 4:12],
        np.asfortranarray,
        lambda x: np.lib.stride_tricks.as_strided(x, (3, 8), (4, 4)),
        lambda x: np.broadcast_to(x[:1], (5, 16)),
    ],
    ids=["every second", "part", "Fortran", "overlapping", "broadcast"],
)
def test_views_are_read_where_they_lie(view):
    x = view(normal(6, 16))
    weight = normal(x.shape[1])
    before = portakernel.stats().array_copies
    got = ops.rms_norm(x, weight)
    wanted = ops.rms_norm(torch.from_numpy(x.copy()), torch.from_numpy(weight))
    assert np.allclose(got, wanted.numpy(), rtol=1e-6, atol=0)
    assert portakernel.stats().array_copies == before


def test_read_only_arrays_are_read():
    x = normal(3, 8)
    x.flags.writeable = False
    assert as_bytes(ops.rms_norm(x, normal(8))) == as_bytes(ops.rms_norm(x.copy(), normal(8)))


def test_arrays_in_a_file_are_read_and_written(tmp_path):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 8))
    x[:] = normal(3, 8)
    weight = normal(8)
    wanted = ops.rms_norm(np.array(x), weight)
    assert type(ops.rms_norm(x, weight)) is np.ndarray
    ops.rms_norm(x, weight, out=x)
    x.flush()
    assert np.array_equal(np.fromfile(tmp_path / "x", np.float32).reshape(3, 8), wanted)


def test_small_floats_go_there_and_back():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = normal(4, 32).astype(ml_dtypes.bfloat16)
    assert ops.softmax(x).dtype == ml_dtypes.bfloat16
    q, scale = ops.quantize_fp8(x)
    assert (q.dtype, scale.dtype) == (ml_dtypes.float8_e4m3fn, np.float32)
    restored = ops.dequantize(q, scale, format="row", dtype="float32")
    assert np.abs(restored - x.astype(np.float32)).max() < 0.2


def test_pairs_of_four_bits_are_bytes():
    """NumPy has no dtype of two numbers in a byte, torch's float4_e2m1fn_x2; the bytes are the same."""
    pytest.importorskip("ml_dtypes")
    x = normal(4, 64)
    q, scale = ops.quantize_fp4(x, format="mxfp4")[:2]
    assert (q.dtype, q.shape) == (np.uint8, (4, 32))
    restored = ops.dequantize(q, scale, format="mxfp4", dtype="float32")
    assert np.abs(restored - x).max() < 1


def test_parameters_stay_python_numbers():
    x, weight = normal(3, 8), normal(8)
    wanted = ops.rms_norm(torch.from_numpy(x), torch.from_numpy(weight), eps=0.5, weight_offset=1.0)
    assert as_bytes(ops.rms_norm(x, weight, eps=0.5, weight_offset=1.0)) == as_bytes(wanted)


def test_a_kernel_is_named_as_for_tensors():
    x, weight = normal(3, 8), normal(8)
    before = sum(row.calls for row in portakernel.stats() if row.kernel == "reference.rms_norm")
    ops.rms_norm(x, weight, kernel="reference.rms_norm")
    assert sum(row.calls for row in portakernel.stats() if row.kernel == "reference.rms_norm") == before + 1


def test_explain_and_warmup_take_arrays_as_tensors():
    x, weight = normal(3, 8), normal(8)
    decision = portakernel.explain("rms_norm", x, weight)
    tensors = portakernel.explain("rms_norm", torch.from_numpy(x), torch.from_numpy(weight))
    assert (decision.chosen, decision.request) == (tensors.chosen, tensors.request)
    assert portakernel.warmup("rms_norm", x, weight).calls


def test_threads_call_with_arrays_at_once():
    x, weight, start = normal(8, 32), normal(32), threading.Barrier(4)
    wanted = as_bytes(ops.rms_norm(x, weight))
    wrong = []

    def work() -> None:
        start.wait()
        wrong.extend(number for number in range(100) if as_bytes(ops.rms_norm(x, weight)) != wanted)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
