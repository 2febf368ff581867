"""Calls with JAX's arrays: eager, under jit, vmap and grad, with JAX's own formulas as the measure."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from array_calls import as_bytes

import portakernel
from portakernel import ops
from portakernel.errors import ArgumentTypeError, ArgumentValueError, DerivativeError, UnknownNameError

jax = pytest.importorskip("jax")
jnp = jax.numpy

X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
WEIGHT = np.random.default_rng(2).standard_normal(64).astype(np.float32)
OUTER = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)


def rms_norm(x, weight, eps=1e-6):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def in_float64(function, *arguments):
    """What ``function`` gives in float64, on the CPU."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*[jnp.asarray(each, jnp.float64) for each in arguments]))


def copies(op):
    return {(row.name, row.library): row for row in portakernel.stats().array_copies if row.op == op}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_are_arrays_of_jax_with_the_bits_of_tensors(dtype):
    x, weight = jnp.asarray(X, dtype), jnp.asarray(WEIGHT, dtype)
    wanted = ops.rms_norm(torch.from_dlpack(x), torch.from_dlpack(weight))
    got = ops.rms_norm(x, weight)
    assert isinstance(got, jax.Array)
    assert as_bytes(got) == as_bytes(wanted)


def test_several_results_keep_their_form():
    x, weight = jnp.asarray(X), jnp.asarray(WEIGHT)
    y, summed = ops.add_rms_norm(x, x, weight)
    assert np.array_equal(summed, X + X)
    q, scale = ops.quantize_fp8(x)
    assert (str(q.dtype), str(scale.dtype)) == ("float8_e4m3fn", "float32")
    assert isinstance(y, jax.Array)


def test_what_is_still_being_computed_is_waited_for():
    """JAX returns before it has computed: what is read must be what comes of it."""
    many = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: jnp.tanh(y @ y.T @ y), x))
    x, weight = jnp.asarray(np.tile(X, (1, 4))), jnp.ones(256)
    got = ops.rms_norm(many(x), weight)
    assert as_bytes(got) == as_bytes(ops.rms_norm(jax.block_until_ready(many(x)), weight))


def test_arrays_without_elements_are_served():
    y = ops.rms_norm(jnp.zeros((0, 64)), jnp.asarray(WEIGHT))
    assert isinstance(y, jax.Array)
    assert y.shape == (0, 64)


def test_memory_is_shared_both_ways_and_so_nothing_is_counted():
    before = copies("silu_and_mul")
    ops.silu_and_mul(jnp.asarray(X), copy=False)
    assert copies("silu_and_mul") == before


class TestGradients:
    """``jax.grad`` goes through the op's own backward."""

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
    def test_they_are_those_of_jaxs_own_formula(self, compiled):
        def loss(function):
            return lambda x, weight: (function(x, weight) * OUTER).sum()

        gradient = jax.grad(loss(ops.rms_norm), (0, 1))
        got = (jax.jit(gradient) if compiled else gradient)(jnp.asarray(X), jnp.asarray(WEIGHT))
        exact = in_float64(jax.grad(loss(rms_norm), (0, 1)), X, WEIGHT)
        own = jax.grad(loss(rms_norm), (0, 1))(jnp.asarray(X), jnp.asarray(WEIGHT))
        for ours, theirs, wanted in zip(got, own, exact, strict=True):
            assert isinstance(ours, jax.Array)
            allowed = max(2 * np.abs(np.asarray(theirs) - wanted).max(), 4e-7 * np.abs(wanted).max())
            assert np.abs(np.asarray(ours) - wanted).max() <= allowed

    def test_they_come_from_the_ops_own_backward(self):
        def calls():
            return sum(row.calls for row in portakernel.stats() if (row.op, row.phase) == ("rms_norm", "backward"))

        before = calls()
        jax.grad(lambda x: ops.rms_norm(x, jnp.asarray(WEIGHT)).sum())(jnp.asarray(X))
        assert calls() == before + 1

    def test_value_and_gradient_and_vjp(self):
        x, weight = jnp.asarray(X), jnp.asarray(WEIGHT)
        value, grad = jax.value_and_grad(lambda x: ops.rms_norm(x, weight).sum())(x)
        y, pull = jax.vjp(lambda x: ops.rms_norm(x, weight), x)
        assert np.isclose(value, y.sum(), rtol=1e-5)
        assert np.array_equal(pull(jnp.ones_like(y))[0], grad)

    def test_one_of_several_results_is_enough(self):
        x, weight = jnp.asarray(X), jnp.asarray(WEIGHT)
        got = jax.grad(lambda x: ops.add_rms_norm(x, x, weight)[1].sum())(x)
        assert np.array_equal(got, np.full_like(X, 2))

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
    def test_whole_numbers_have_none(self, compiled):
        target = jnp.asarray([3, 1, 4, 1])
        gradient = jax.grad(lambda logits: ops.cross_entropy(logits, target).sum())
        got = (jax.jit(gradient) if compiled else gradient)(jnp.asarray(X))
        exact = in_float64(lambda x: jax.nn.softmax(x) - jax.nn.one_hot(target, 64), X)
        assert np.abs(np.asarray(got) - exact).max() < 1e-6

    def test_a_parameter_is_part_of_the_call(self):
        def gradient(function, eps):
            return jax.grad(lambda x: (function(x, jnp.asarray(WEIGHT), eps=eps) * OUTER).sum())(jnp.asarray(X))

        for eps in (1e-6, 0.5):
            assert np.allclose(gradient(ops.rms_norm, eps), gradient(rms_norm, eps), rtol=1e-4, atol=1e-5)

    def test_a_deleted_array_is_refused_here_too(self):
        gone = jnp.asarray(WEIGHT) + 0
        gone.delete()
        with pytest.raises(ArgumentValueError, match=r"^rms_norm: weight is deleted, "):
            jax.grad(lambda x: ops.rms_norm(x, gone).sum())(jnp.asarray(X))

    @pytest.mark.parametrize("transform", [jax.jit, lambda f: jax.grad(lambda x: f(x).sum())], ids=["jit", "grad"])
    def test_copies_cannot_be_ruled_out_here(self, transform):
        with pytest.raises(ArgumentValueError) as caught:
            transform(lambda x: ops.softmax(x, copy=False))(jnp.asarray(X))
        assert str(caught.value) == (
            "softmax: copy=False cannot be kept inside of jax.jit, jax.grad and the like, where JAX copies as it sees"
            " fit; leave it away there"
        )

    def test_an_op_without_a_gradient_says_so(self):
        text = "quantize_fp8 has no gradient; where none is meant, wrap its arguments: jax.lax.stop_gradient(...)"
        with pytest.raises(DerivativeError) as caught:
            jax.grad(lambda x: ops.quantize_fp8(x)[1].sum())(jnp.asarray(X))
        assert str(caught.value) == text
        assert np.array_equal(
            jax.grad(lambda x: ops.quantize_fp8(jax.lax.stop_gradient(x))[1].sum() + x.sum())(jnp.asarray(X)),
            np.ones_like(X),
        )


class TestTraces:
    """Under ``jax.jit`` on a CPU a callback serves."""

    def test_a_compiled_call_has_the_bits_of_an_eager_one(self):
        x, weight = jnp.asarray(X), jnp.asarray(WEIGHT)
        compiled = jax.jit(lambda x, weight: ops.rms_norm(x * 2, weight) + 0)
        assert as_bytes(compiled(x, weight)) == as_bytes(ops.rms_norm(x * 2, weight))

    def test_small_floats_and_several_results(self):
        x = jnp.asarray(X, jnp.bfloat16)
        assert as_bytes(jax.jit(ops.quantize_fp8)(x)) == as_bytes(ops.quantize_fp8(x))
        pairs = jax.jit(lambda x: ops.quantize_fp4(x, format="mxfp4")[:2])(jnp.asarray(X))
        assert as_bytes(pairs) == as_bytes(ops.quantize_fp4(jnp.asarray(X), format="mxfp4")[:2])
        restored = jax.jit(lambda q, s: ops.dequantize(q, s, format="mxfp4", dtype="float32"))(*pairs)
        assert as_bytes(restored) == as_bytes(ops.dequantize(*pairs, format="mxfp4", dtype="float32"))

    def test_vmap_calls_once_for_each(self):
        x, weight = jnp.asarray(np.stack([X, -X, 2 * X])), jnp.asarray(WEIGHT)
        assert as_bytes(jax.vmap(ops.rms_norm, (0, None))(x, weight)) == as_bytes(ops.rms_norm(x, weight))

    def test_what_does_not_fit_is_told_while_it_is_traced(self):
        with pytest.raises(
            ArgumentValueError, match=r"^rms_norm: weight has shape \(63,\), so N = 63, but x has N = 64"
        ):
            jax.jit(ops.rms_norm).lower(jnp.asarray(X), jnp.zeros(63))

    @pytest.mark.parametrize(
        ("kernel", "error", "message"),
        [
            ("torch.softmx", UnknownNameError, r"^kernel: unknown kernel or plugin 'torch\.softmx'; did you mean "),
            ("torch.add", ArgumentValueError, r"^softmax: 'torch\.add' has kernels of add, not of softmax; those are "),
            (3, ArgumentTypeError, r"^kernel must be the name of a kernel or plugin; this is int 3\b"),
        ],
    )
    def test_a_kernel_that_the_op_has_not_is_told_while_it_is_traced(self, kernel, error, message):
        with pytest.raises(error, match=message):
            jax.jit(lambda x: ops.softmax(x, kernel=kernel)).lower(jnp.asarray(X))

    def test_a_kernel_that_cannot_serve_is_told_at_the_end_of_jaxs_own_error(self):
        compiled = jax.jit(lambda x: ops.softmax(x, kernel="triton")).lower(jnp.asarray(X)).compile()
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)callback.*NoKernelError: no kernel for op softmax"):
            jax.block_until_ready(compiled(jnp.asarray(X)))

    @pytest.mark.parametrize(
        ("ask", "error", "message"),
        [
            (lambda f, x: jax.hessian(f)(x), ValueError, "Pure callbacks do not support JVP"),
            (lambda f, x: jax.grad(lambda x: jax.grad(f)(x).sum())(x), ValueError, "Pure callbacks do not support JVP"),
            (
                lambda f, x: jax.jvp(f, (x,), (x,)),
                TypeError,
                "can't apply forward-mode autodiff (jvp) to a custom_vjp function",
            ),
            (
                lambda f, x: jax.export.export(jax.jit(f))(x),
                NotImplementedError,
                "serialization of host_callbacks is not yet implemented",
            ),
        ],
        ids=["hessian", "gradient of a gradient", "jvp", "export"],
    )
    def test_what_jax_itself_refuses_is_in_the_table_with_its_words(self, ask, error, message):
        page = (Path(__file__).parents[2] / "docs" / "arrays.md").read_text(encoding="utf-8")
        assert f"JAX's `{message}`" in page
        with pytest.raises(error, match=re.escape(message)):
            ask(lambda x: ops.softmax(x).sum(), jnp.asarray(X))

    def test_a_policy_block_around_the_trace_holds_in_the_callback(self):
        def served():
            return sum(row.calls for row in portakernel.stats() if row.kernel == "reference.softmax")

        before = served()
        with portakernel.use("reference.softmax"):
            compiled = jax.jit(ops.softmax).lower(jnp.asarray(X)).compile()
        compiled(jnp.asarray(X)).block_until_ready()
        assert served() == before + 1

    def test_on_a_gpu_it_is_refused_with_the_reason(self, monkeypatch):
        jax.jit(ops.rms_norm).lower(jnp.asarray(X), jnp.asarray(WEIGHT))
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        with pytest.raises(ArgumentValueError) as caught:
            # A function of its own: what jax.jit has traced of another is not traced again.
            jax.jit(functools.partial(ops.rms_norm)).lower(jnp.asarray(X), jnp.asarray(WEIGHT))
        assert str(caught.value) == (
            "rms_norm: traced by JAX for gpu, where a kernel inside of jax.jit needs an FFI target of its own, which"
            " portakernel has not; call it outside of jax.jit"
        )

    def test_explain_asks_for_words_instead(self):
        with pytest.raises(ArgumentValueError) as caught:
            jax.jit(lambda x: portakernel.explain("softmax", x)).lower(jnp.asarray(X))
        assert str(caught.value) == (
            "softmax: x is traced by JAX and has no memory yet; ask outside of jax.jit, or in words (dtype= and shape=)"
        )


class TestImmutable:
    """JAX's arrays never change."""

    def test_they_are_no_out(self):
        x = jnp.asarray(X)
        with pytest.raises(ArgumentValueError) as caught:
            ops.rms_norm(x, jnp.asarray(WEIGHT), out=x)
        assert str(caught.value) == (
            "rms_norm: out is to be written, but is a JAX array, which never changes: others may hold its memory;"
            " torch.from_dlpack(out).clone() is a tensor that may be written; or leave out= away"
        )
        assert np.array_equal(x, X)

    def test_no_op_writes_into_them(self):
        key, cache = jnp.ones((2, 1, 4)), jnp.zeros((3, 2, 1, 4))
        with pytest.raises(ArgumentValueError) as caught:
            ops.write_kv_cache(key, key, cache, cache + 0, jnp.asarray([4, 1]))
        assert str(caught.value) == (
            "write_kv_cache: key_cache is written in place, but is a JAX array, which never changes: others may hold"
            " its memory; torch.from_dlpack(key_cache).clone() is a tensor that may be written"
        )
        assert not np.asarray(cache).any()


def test_sharded_and_deleted_arrays_are_refused():
    gone = jnp.asarray(X) + 0
    gone.delete()
    with pytest.raises(ArgumentValueError) as caught:
        ops.softmax(gone)
    assert str(caught.value) == (
        "softmax: x is deleted, as what jax.jit was given to donate; keep it, or compute it anew"
    )


def test_dtypes_that_no_op_takes_are_told_with_those_that_are():
    with pytest.raises(ArgumentTypeError) as caught:
        ops.softmax(jnp.zeros(4, jnp.int4))
    assert str(caught.value) == ("softmax: x has dtype int4, which no op takes; accepted: float32, float16, bfloat16")
