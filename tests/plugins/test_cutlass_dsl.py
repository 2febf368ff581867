"""Products in CuTe DSL: what is compiled for a call, and what the compiler makes of it for GPUs that are not here."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("nvidia_cutlass_dsl", reason="lacks CuTe DSL: pip install nvidia-cutlass-dsl")

from portakernel.claims.request import Request
from portakernel.errors import ArgumentValueError
from portakernel.runtime import dispatcher
from portakernel.words.target import Target
from portakernel_plugins.cutlass_dsl import linear_act, offline
from portakernel_plugins.cutlass_dsl.compiled import ARCHS, Variant, operands_at, sizes_of

EVIDENCE = {"sm_90": r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.bf16", "sm_100": r"tcgen05\.mma\.cta_group::1"}
HOPPER = Request("linear_act", Target.parse("nvidia:sm_90"), {"x": "float16", "weight": "float16"})


@pytest.mark.parametrize("arch", sorted(ARCHS))
def test_it_compiles_to_the_tensor_cores_own_instructions_and_spills_nothing(arch):
    x = torch.empty(16, 64, dtype=torch.bfloat16, device="meta")
    weight, bias = x.new_empty(24, 64), x.new_empty(24)
    with offline.compiling(Target("nvidia", arch)) as found:
        for _ in range(2):
            y = linear_act.linear_act(x, weight, bias, activation="relu")
    assert (y.shape, y.dtype) == ((16, 24), torch.bfloat16)
    (kernel,) = found
    assert kernel.function == f"linear_act {arch} (bfloat16, relu, bias)"
    assert kernel.spilled_bytes == 0
    # six stages of x and weight in 16 bits, and what is stored by way of it
    assert kernel.shared_bytes == {"sm_90": 214_016, "sm_100": 197_632}[arch]
    assert re.search(EVIDENCE[arch], kernel.assembly)
    assert re.search(dispatcher().registry.kernels["cutlass_dsl.linear_act"].evidence["nvidia"], kernel.assembly)


def test_every_activation_has_code_of_its_own():
    x = torch.empty(16, 64, dtype=torch.float16, device="meta")
    with offline.compiling(HOPPER.target) as found:
        for activation in ("none", "silu"):
            linear_act.linear_act(x, x, activation=activation)
    none, silu = (kernel.assembly for kernel in found)
    assert "ex2.approx" in silu
    assert "ex2.approx" not in none


def test_what_is_compiled_follows_from_dtype_activation_and_whether_there_is_a_bias():
    asked = replace(HOPPER, values={"activation": "gelu"})
    assert linear_act._variant(asked) == Variant("sm_90", "float16", "gelu", has_bias=False)
    asked = replace(asked, dtypes={**asked.dtypes, "bias": "float16"})
    assert linear_act._variant(asked) == Variant("sm_90", "float16", "gelu", has_bias=True)


def test_until_it_is_compiled_the_reason_says_what_compiles_it():
    rejection = linear_act.built(HOPPER)
    assert rejection.code == "needs_build"
    assert rejection.text == (
        'linear_act sm_90 (float16, none) is not compiled; portakernel.warmup("linear_act", x, weight) compiles it'
    )


def test_a_build_serves_all_sizes(monkeypatch):
    compiled = []
    monkeypatch.setattr(linear_act, "_KERNELS", {})
    monkeypatch.setattr(linear_act, "compiled", lambda variant: compiled.append(variant) or "kernel")
    for rows in (16, 4096):
        linear_act.build(replace(HOPPER, dims={"M": rows}), (), ())
        assert linear_act.built(replace(HOPPER, dims={"M": rows + 1})) is None
    assert compiled == [Variant("sm_90", "float16", "none", has_bias=False)]


def test_meta_tensors_outside_of_a_compilation_are_refused():
    x = torch.empty(64, 64, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ArgumentValueError, match="were given meta tensors, which have no memory"):
        linear_act.linear_act(x, x, activation="relu")


def test_no_rows_need_no_kernel():
    weight = torch.zeros(24, 16, dtype=torch.float16)
    assert linear_act.linear_act(weight.new_zeros(0, 16), weight, activation="none").shape == (0, 24)


def test_operands_are_addresses_and_sizes_are_numbers():
    operands, sizes = operands_at("bfloat16", 16, 32, 48, 64), sizes_of(1, 2, 3, 4, 5, 6)
    assert len(operands) == 4
    assert [number.value for number in sizes] == [1, 2, 3, 4, 5, 6]
