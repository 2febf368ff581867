"""Which kernels are measured: those that can serve, and the reference on CPUs or where nothing else can."""

from __future__ import annotations

import portakernel
from portakernel_kit.tune.contending import contending

ROWS = {"x": (64, 256), "weight": (256,)}


def names(**asked: object) -> list[str]:
    return [kernel.name for kernel in contending(portakernel.explain("rms_norm", shape=ROWS, **asked))]


def test_a_cpus_reference_takes_part():
    assert names(target="cpu:x86_64", dtype="float32")[-1] == "reference.rms_norm"


def test_an_accelerators_reference_takes_part_where_nothing_else_can_serve():
    found = names(target="nvidia:sm_90", dtype="bfloat16")
    assert "triton.rms_norm" in found
    assert "reference.rms_norm" not in found
    assert names(target="nvidia:sm_90", dtype="float64") == ["reference.rms_norm"]


def test_of_backward_those_take_part_that_go_with_any_forward():
    asked = {"target": "cpu:x86_64", "dtype": "float32"}
    shape = dict.fromkeys("qkv", (1, 64, 4, 32))
    both = {}
    for phase in ("training", "backward"):
        decision = portakernel.explain("attention", shape=shape, phase=phase, **asked)
        both[phase] = {kernel.name for kernel in contending(decision)}
    assert "torch.attention_flash_cpu_recorded" in both["training"]
    assert not both["backward"]
