"""Ops that write into arguments, some of which may be absent: the kit finds faults of their kernels."""

from __future__ import annotations

import pytest
import torch

from portakernel.contracts import contract
from portakernel_kit.conformance.drawn.levels import factors
from portakernel_kit.conformance.memory import layouts_of


def scales_halved(kernel):
    def mutated(*tensors, value_scales=None, **keywords):
        kernel(*tensors, value_scales=value_scales, **keywords)
        if value_scales is not None:
            value_scales[:] *= 0.5

    return mutated


def scales_left(kernel):
    def mutated(*tensors, key_scales=None, **keywords):
        kernel(*tensors, key_scales=None if key_scales is None else key_scales.clone(), **keywords)

    return mutated


def last_page_cleared(kernel):
    """Of a cache alone that no token goes to the end of."""

    def mutated(key, value, key_cache, value_cache, slot_mapping, **keywords):
        kernel(key, value, key_cache, value_cache, slot_mapping, **keywords)
        slots = key_cache.shape[0] * key_cache.shape[1]
        if slots and slots - 1 not in slot_mapping.tolist():
            value_cache.view(torch.uint8 if value_cache.itemsize == 1 else value_cache.dtype)[-1, -1] = 0

    return mutated


def scale_forgotten(kernel):
    def mutated(*tensors, k_scale=None, **keywords):
        kernel(*tensors, k_scale=None if k_scale is None else k_scale.new_ones(k_scale.shape), **keywords)

    return mutated


def minus_one_written(kernel):
    """As Python indexes: -1 is the last slot."""

    def mutated(key, value, key_cache, value_cache, slot_mapping, **keywords):
        last = key_cache.shape[0] * key_cache.shape[1] - 1
        wrapped = slot_mapping.masked_fill(slot_mapping == -1, last) if last >= 0 else slot_mapping
        kernel(key, value, key_cache, value_cache, wrapped, **keywords)

    return mutated


FAULTS = {
    scales_halved: {"forward"},
    scales_left: {"forward"},
    last_page_cleared: {"forward", "written"},
    scale_forgotten: {"forward"},
    minus_one_written: {"forward", "written"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_what_is_written_is_found(make_suite, fault):
    suite, missing = make_suite("reference.write_kv_cache", forward=fault), set(FAULTS[fault])
    for unit in suite.units():
        missing -= {result.aspect for result in suite.run(unit) if result.status == "failed"}
        if not missing:
            break
    assert missing == set()


def test_what_is_written_and_where_is_never_one_number_seen_everywhere():
    described = contract("write_kv_cache")
    for name in ("key_cache", "value_cache", "key_scales", "slot_mapping"):
        assert "expanded" not in factors(described)[f"{name} lies"]
        assert "expanded" not in layouts_of(described.tensor(name), 3)
    assert "expanded" in factors(described)["key lies"]
