"""Targets as text."""

from __future__ import annotations

import pytest

from portakernel.errors import ArgumentValueError, UnknownNameError
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry
from portakernel.words.target import Target


@pytest.fixture(scope="module")
def installed() -> Registry:
    return Registry(PluginManager())


@pytest.mark.parametrize(
    ("text", "vendor", "arch"),
    [
        ("nvidia:sm_90", "nvidia", "sm_90"),
        ("nvidia:sm_90a", "nvidia", "sm_90"),
        ("amd:gfx942:sramecc+:xnack-", "amd", "gfx942"),
        ("  cpu:x86_64 \n", "cpu", "x86_64"),
        ("acme_2:npu1", "acme_2", "npu1"),
    ],
)
def test_a_target_is_vendor_and_arch(text, vendor, arch):
    target = Target.parse(text)
    assert (target.vendor, target.arch) == (vendor, arch)
    assert str(target) == f"{vendor}:{arch}"
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    "text", ["", "nvidia", "nvidia:", "nvidia: ", ":sm_90", "NVIDIA:sm_90", "9dia:sm_90", "nvidia sm_90", "cpu::x86_64"]
)
def test_text_of_another_form_is_refused_whole(text):
    with pytest.raises(ArgumentValueError) as caught:
        Target.parse(text)
    assert str(caught.value) == f"target {text!r} is not of the form vendor:arch, such as nvidia:sm_90 or amd:gfx942"


@pytest.mark.parametrize("text", ["nvidia:sm_90", "nvidia:sm_130", "amd:gfx942:xnack-", "cpu:x86_64", "cpu:riscv64"])
def test_the_registry_knows_the_vendors_archs_and_what_may_come_after_them(installed, text):
    assert installed.target(text) == Target.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nvida:sm_90", "here: unknown vendor 'nvida'; did you mean 'nvidia'?"),
        ("qualcomm:x1", "here: unknown vendor 'qualcomm'; known: amd, apple, cpu, intel, nvidia"),
        ("nvidia:sm_81", "here: unknown nvidia arch or product 'sm_81'; did you mean 'sm_89' or 'sm_87' or 'sm_86'? "),
        ("amd:gfx943", "here: unknown amd arch or product 'gfx943'; did you mean 'gfx942' or "),
        ("amd:sm_90", "here: unknown amd arch or product 'sm_90'; it is nvidia:sm_90. amd has\n"),
    ],
)
def test_a_misspelt_vendor_or_arch_offers_the_nearest(installed, text, message):
    with pytest.raises(UnknownNameError) as caught:
        installed.target(text, where="here")
    assert str(caught.value).startswith(message)


def test_targets_order_by_vendor_then_arch():
    texts = ["nvidia:sm_90", "amd:gfx950", "amd:gfx942"]
    assert [str(target) for target in sorted(map(Target.parse, texts))] == ["amd:gfx942", "amd:gfx950", "nvidia:sm_90"]
