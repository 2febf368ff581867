"""Each claim is widened by itself, and by no more than it takes."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from portakernel import runtime
from portakernel.claims.capability import Capability, Limit, ReasonCode
from portakernel.contracts import contract, own_contracts
from portakernel_kit.conformance.claims import elements
from portakernel_kit.conformance.widening import Widening, cases_beyond, widened, widenings


def kernels_for_cpus():
    registry = runtime.dispatcher().registry
    ours = [k for k in registry.kernels.values() if k.first_party and k.op in own_contracts()]
    return [k.name for k in ours if k.disabled is None]


def here(kernel):
    return [capability for _, capability in kernel.variants]


def widenings_of(registry, name, **claims):
    """Those of a kernel whose first variant's claims are changed, by their words."""
    kernel = registry.kernels[name]
    (variant, capability), *others = kernel.variants
    kernel = replace(kernel, variants=((variant, replace(capability, **claims)), *others))
    return kernel, {w.claim: w for w in widenings(contract(kernel.op), kernel, here(kernel))}


def changed_fields(before: Capability, after: Capability) -> set[str]:
    return {field.name for field in fields(before) if getattr(before, field.name) != getattr(after, field.name)}


@pytest.mark.parametrize("name", kernels_for_cpus())
def test_each_widening_changes_one_claim_in_the_variants_that_make_it(registry, name):
    kernel = registry.kernels[name]
    found = list(widenings(contract(kernel.op), kernel, here(kernel)))
    assert len({widening.claim for widening in found}) == len(found)
    for widening in found:
        pairs = list(zip(here(kernel), here(widening.kernel), strict=True))
        changes = [changed_fields(before, after) for before, after in pairs if before != after]
        if widening.parameter == "check":
            assert (changes, widening.kernel.check) == ([], None)
            continue
        assert changes
        # a tensor that is a feature comes with its dtypes
        assert all(len(change - {"dtypes"}) <= 1 for change in changes)
        assert widening.partial == (len(changes) < len(kernel.variants))
        assert widening.kernel.check is kernel.check


def test_only_the_variants_here_are_widened(registry):
    kernel = registry.kernels["torch.linear_act"]
    (_, gpu), _, (_, cpu) = kernel.variants
    found = {w.claim: w.kernel.variants for w in widenings(contract("linear_act"), kernel, [cpu])}
    assert {claim for claim in found if claim.startswith("activation")} == {
        "activation not 'none'",
        "activation not 'gelu_tanh'",
        "activation not 'silu'",
    }
    # what an entry says of gradients, it says of all its variants
    for claim, variants in found.items():
        assert variants[0][1] is gpu or claim.startswith(("without forward-mode", "without saving"))
    assert found["activation not 'silu'"][2][1].values["activation"] == (*cpu.values["activation"], "silu")


def test_each_term_of_a_limit_is_dropped_by_itself(registry):
    limit = Limit("N", min=16, max=128, multiple_of=16)
    _, found = widenings_of(registry, "torch.rms_norm_cpu", limits=(limit, Limit("x.alignment", min=16)))
    bounds = {claim: w.bound for claim, w in found.items() if w.bound}
    assert bounds == {
        "N >= 16": (limit, replace(limit, min=None)),
        "N <= 128": (limit, replace(limit, max=None)),
        "N a multiple of 16": (limit, replace(limit, multiple_of=None)),
        "x.alignment >= 16": (Limit("x.alignment", min=16), Limit("x.alignment")),
    }
    assert found["N <= 128"].code is ReasonCode.LIMIT
    assert (found["x.alignment >= 16"].code, found["x.alignment >= 16"].parameter) == (
        ReasonCode.ALIGNMENT,
        "x.alignment",
    )


@pytest.mark.parametrize(
    ("name", "claimed", "added", "changed"),
    [
        # what follows may follow already
        (
            "torch.layer_norm_cpu",
            {"x": ("float32",), "weight": ("x",), "bias": ("weight",)},
            "x",
            {"x": ("float32", "float16")},
        ),
        # a weight in float32 is accepted beside any x
        (
            "torch.layer_norm_cpu",
            {"x": ("bfloat16",), "weight": ("float32",), "bias": ("float32",)},
            "x",
            {"x": ("bfloat16", "float16")},
        ),
        # a bias is accepted in the dtype of the weight alone
        (
            "torch.layer_norm_cpu",
            {"x": ("float32",), "weight": ("float32",), "bias": ("float32",)},
            "weight",
            {"weight": ("float32", "float16"), "bias": ("float32", "weight")},
        ),
        (
            "torch.add_layer_norm_cpu",
            {"x": ("bfloat16",), "residual": ("bfloat16",), "weight": ("bfloat16",), "bias": ("bfloat16",)},
            "x",
            {
                "x": ("bfloat16", "float16"),
                "residual": ("bfloat16", "x"),
                "weight": ("bfloat16", "x"),
                "bias": ("bfloat16", "weight"),
            },
        ),
    ],
)
def test_dtype_brings_those_along_that_the_op_makes_follow(registry, name, claimed, added, changed):
    _, found = widenings_of(registry, name, dtypes=claimed)
    widening = found[f"{added} not float16"]
    (capability,) = here(widening.kernel)
    assert capability.dtypes == claimed | changed
    assert (widening.dtype, widening.parameter, widening.code) == ("float16", added, ReasonCode.DTYPE)


def test_formats_that_the_op_knows_and_the_claim_does_not_are_widened(registry):
    _, found = widenings_of(registry, "torch.scaled_mm_cpu")
    of_a = {claim for claim in found if claim.startswith("a without")}
    claimed = here(registry.kernels["torch.scaled_mm_cpu"])[0].formats["a"]
    choices = next(p.choices for p in contract("scaled_mm").parameters if (p.of or p.name) == "a")
    assert of_a == {f"a without {scale_format} scales" for scale_format in choices if scale_format not in claimed}


def test_what_another_variant_takes_is_told_with_the_variant_that_does_not(registry):
    kernel = registry.kernels["torch.attention_flash_cpu"]
    found = {w.claim: w for w in widenings(contract("attention"), kernel, here(kernel))}
    assert found["without feature return_lse (sixteen_bit)"].partial
    assert not found["without feature softcap"].partial


def test_kernel_that_is_switched_off_is_switched_on_and_no_more(registry):
    kernel = replace(registry.kernels["torch.add"], disabled="wrong")
    (widening,) = widenings(contract("add"), kernel, here(kernel))
    assert (widening.claim, widening.kernel.disabled) == ("disabled: wrong", None)


def test_properties_that_an_op_cannot_show_are_not_widened(registry):
    _, of_attention = widenings_of(registry, "torch.attention_math", properties=frozenset())
    _, of_add = widenings_of(registry, "torch.add", properties=frozenset())
    assert {w.required for w in of_attention.values() if w.required} == {"deterministic", "graph_capture"}
    assert {w.required for w in of_add.values() if w.required} == {
        "deterministic",
        "batch_invariant",
        "graph_capture",
        "inplace",
    }


def beyond(widening: Widening, op: str, most: int = 1 << 20):
    return cases_beyond(contract(op), widening, contract(op).cases, most)


@pytest.mark.parametrize(
    ("limit", "claim", "sizes"),
    [
        (Limit("N", max=128), "N <= 128", [129, 256]),
        (Limit("N", max=128, multiple_of=16), "N <= 128", [144, 256]),
        (Limit("N", min=64, multiple_of=16), "N >= 64", [48]),
        (Limit("N", min=1), "N >= 1", [0]),
        (Limit("N", multiple_of=16), "N a multiple of 16", [15, 17]),
        (Limit("N", one_of=(64, 128)), "N in 64, 128", [63, 65, 127, 129]),
        (Limit("N", power_of_two=True), "N a power of two", [0, 3, 5]),
        (Limit("N", max=1 << 30), f"N <= {1 << 30}", []),
    ],
)
def test_sizes_that_are_refused_for_one_term_alone_are_made(registry, limit, claim, sizes):
    _, found = widenings_of(registry, "torch.rms_norm_cpu", limits=(limit,))
    cases = beyond(found[claim], "rms_norm")
    assert [case.dims["N"] for case in cases] == sizes
    assert [case.name for case in cases] == [f"N = {size}" for size in sizes]
    assert all(0 not in case.leading for case in cases)
    # the largest case of the op that leaves the tensors small
    assert all(elements(contract("rms_norm"), case) <= 1 << 20 for case in cases)


def test_rows_are_a_size_too(registry):
    _, found = widenings_of(registry, "torch.rms_norm_cpu", limits=(Limit("M", min=2, max=4096),))
    assert [case.leading for case in beyond(found["M >= 2"], "rms_norm")] == [(1,)]
    assert [case.leading for case in beyond(found["M <= 4096"], "rms_norm")] == [(4097,), (8192,)]


def test_each_layout_is_made_of_a_case_in_which_the_tensor_can_lie_like_that(registry):
    limit = Limit("x.contiguous", one_of=(True,))
    _, found = widenings_of(registry, "torch.rms_norm_cpu", limits=(limit,))
    cases = beyond(found["x.contiguous = true"], "rms_norm")
    assert {case.layouts["x"] for case in cases} == {"sliced", "transposed", "expanded", "stepped", "offset", "split"}
    assert {case.name for case in cases} == {f"x {case.layouts['x']}" for case in cases}
    # what tells where bags begin is not expanded: all would begin at one place
    _, found = widenings_of(registry, "torch.embedding_bag_cpu", limits=(Limit("offsets.contiguous", one_of=(True,)),))
    cases = beyond(found["offsets.contiguous = true"], "embedding_bag")
    assert {case.layouts["offsets"] for case in cases} == {"sliced", "stepped", "offset"}


def test_widened_kernel_serves_what_it_refused_and_the_dispatcher_is_as_before(registry):
    from portakernel.config import Config
    from portakernel.deciding.dispatcher import Dispatcher

    dispatcher = Dispatcher(registry, Config())
    kernel, found = widenings_of(registry, "torch.rms_norm_cpu", features=frozenset())
    changed = widened(dispatcher, found["without feature weight_offset"].kernel)
    assert changed.registry.kernels[kernel.name].features == {"weight_offset"}
    assert dispatcher.registry.kernels[kernel.name] is registry.kernels[kernel.name]
    assert kernel.features == frozenset()
    assert changed.readiness is dispatcher.readiness
