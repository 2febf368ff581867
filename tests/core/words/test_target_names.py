"""Targets and devices by the names that people use."""

from __future__ import annotations

import re
from types import MappingProxyType

import pytest

from portakernel.errors import ArgumentValueError, UnknownNameError
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry
from portakernel.words.arch import ArchSpace
from portakernel.words.products import spelled, spellings
from portakernel.words.target import Device, Target
from portakernel.words.target_names import find_device, find_target
from portakernel_backends.intel import products as intel

SPACES = MappingProxyType(
    {
        "acme": ArchSpace(
            "acme", (("a_1", "a_2"),), {"old": ("a_1",)}, products={"a_1": ("Titan 40",), "a_2": ("Turbo X7", "T 40")}
        ),
        "beta": ArchSpace("beta", (("b1",),), {}, products={"b1": ("Beta X7",)}),
        "open": ArchSpace("open", (("any",),), {}, open_ended=True),
    }
)


ACME = "  a_1  Titan 40\n  a_2  Turbo X7, T 40"
NO_FORM = (
    "is not of the form vendor:arch, such as nvidia:sm_90 or amd:gfx942, and no product that a backend lists,"
    " such as h100"
)


@pytest.fixture(scope="module")
def installed() -> Registry:
    return Registry(PluginManager())


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("nvidia:h100", "nvidia:sm_90"),
        ("nvidia:H100", "nvidia:sm_90"),
        ("NVIDIA:H-100", "nvidia:sm_90"),
        ("h100", "nvidia:sm_90"),
        ("H200", "nvidia:sm_90"),
        ("gh200", "nvidia:sm_90"),
        ("nvidia:a100", "nvidia:sm_80"),
        ("a40", "nvidia:sm_86"),
        ("l40s", "nvidia:sm_89"),
        ("rtx4090", "nvidia:sm_89"),
        ("RTX 4090", "nvidia:sm_89"),
        ("nvidia:GeForce RTX 4090", "nvidia:sm_89"),
        ("nvidia:b200", "nvidia:sm_100"),
        ("gb300", "nvidia:sm_103"),
        ("rtx-pro-6000", "nvidia:sm_120"),
        ("DGX Spark", "nvidia:sm_121"),
        ("amd:mi300x", "amd:gfx942"),
        ("mi250x", "amd:gfx90a"),
        ("MI355X", "amd:gfx950"),
        ("7900xtx", "amd:gfx1100"),
        ("RX 7900 XTX", "amd:gfx1100"),
        ("m4", "apple:m4"),
        ("m4-max", "apple:m4"),
        ("max1550", "intel:pvc"),
        ("pvc", "intel:pvc"),
        ("b580", "intel:bmg"),
        ("arc b580", "intel:bmg"),
        ("Radeon 8050S", "amd:gfx1151"),
        # as tools print them
        ("NVIDIA H100 80GB HBM3", "nvidia:sm_90"),
        ("NVIDIA H100 PCIe", "nvidia:sm_90"),
        ("nvidia:NVIDIA H100 NVL", "nvidia:sm_90"),
        ("NVIDIA A100-SXM4-80GB", "nvidia:sm_80"),
        ("NVIDIA A100 80GB PCIe", "nvidia:sm_80"),
        ("Tesla V100-SXM2-32GB", "nvidia:sm_70"),
        ("NVIDIA GH200 480GB", "nvidia:sm_90"),
        ("NVIDIA GeForce RTX 4090", "nvidia:sm_89"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "nvidia:sm_89"),
        ("NVIDIA RTX 6000 Ada Generation", "nvidia:sm_89"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "nvidia:sm_120"),
        ("AMD Instinct MI300X", "amd:gfx942"),
        ("AMD Instinct MI300X OAM", "amd:gfx942"),
        ("AMD Radeon RX 7900 XTX", "amd:gfx1100"),
        ("AMD Radeon 780M Graphics", "amd:gfx1103"),
        ("Intel(R) Arc(TM) B580 Graphics", "intel:bmg"),
        ("Intel(R) Data Center GPU Max 1550", "intel:pvc"),
        ("Apple M3 Pro", "apple:m3"),
        # archs, in other spellings and without their vendor
        ("nvidia:SM90", "nvidia:sm_90"),
        ("sm_90a", "nvidia:sm_90"),
        ("sm90a", "nvidia:sm_90"),
        ("nvidia:SM100f", "nvidia:sm_100"),
        ("amd:gfx942:sramecc+:xnack-", "amd:gfx942"),
        ("gfx942", "amd:gfx942"),
        ("x86_64", "cpu:x86_64"),
        ("cpu:riscv64", "cpu:riscv64"),
        ("nvidia:sm_130", "nvidia:sm_130"),
    ],
)
def test_a_target_is_taken_by_the_name_that_people_use(installed, text, target):
    assert str(installed.target(text)) == target


def test_every_name_of_a_product_means_one_arch_of_its_vendor(installed):
    for vendor, space in installed.spaces.items():
        for arch, names in space.products.items():
            assert arch in space.archs
            for name in names:
                assert space.meant(name) == (arch,), f"{vendor} {name}"


def test_intels_products_are_those_of_its_device_ids(installed):
    known = {
        arch: {intel.NAMES[i] for block in blocks for i in block if i in intel.NAMES} for arch, blocks in intel.ARCHS
    }
    for arch, names in installed.spaces["intel"].products.items():
        assert {f"Intel {name}" for name in names} <= known[arch]


def test_a_product_is_also_called_by_its_last_words_unless_these_are_letters_or_digits_alone():
    assert spelled("RTX-PRO_6000 Max") == "rtxpro6000max"
    assert spellings("Radeon RX 7900 XTX") == {
        "radeonrx7900xtx": "Radeon RX 7900 XTX",
        "rx7900xtx": "RX 7900 XTX",
        "7900xtx": "7900 XTX",
    }
    assert set(spellings("RTX PRO 6000")) == {"rtxpro6000", "pro6000"}


# Lines of products, and processors, of which several archs may be.
_NO_PRODUCT = re.compile(r".* series|Ryzen .*|Core Ultra .*|Data Center GPU (Flex|Max)|Xe.*")


def test_the_products_that_an_archs_label_names_mean_that_arch(installed):
    told = []
    for backend in (each for each in installed.backends.values() if each.vendor != "opencl"):
        for arch, facts in backend.archs.items():
            _, _, inside = facts.name.partition("(")
            parts = [part for part in inside.rstrip(")").partition(";")[0].split(", ") if part]
            names = [name for part in parts if not _NO_PRODUCT.fullmatch(part) for name in re.split(" and | to ", part)]
            for name in names:
                told.append(name)
                assert installed.spaces[backend.vendor].meant(name) == (arch,), f"{backend.vendor} {facts.name}: {name}"
    assert {"Radeon 8050S", "8060S", "Radeon 740M", "H100", "Jetson Thor", "RX 6900 XT", "M5 Ultra"} <= set(told)


@pytest.mark.parametrize("name", ["NVIDIA MI300X", "AMD H100 80GB", "80GB", "NVIDIA 4090", "Radeon Graphics", "SXM4"])
def test_what_is_printed_around_a_product_makes_none_by_itself(installed, name):
    with pytest.raises(ArgumentValueError, match="and no product that a backend lists"):
        installed.target(name)


@pytest.mark.parametrize(
    ("name", "offer"),
    [
        ("4090", "did you mean 'RTX 4090'?"),
        ("nvidia:6000", "did you mean 'PRO 6000'?"),
        ("radeon rx 7900 xt 24", "did you mean 'Radeon RX 7900 XT' or 'Radeon RX 7900 XTX' or 'Radeon RX 9070 XT'?"),
        ("rtx4091", "did you mean 'RTX 4090' or 'RTX 5090' or 'RTX 4080'?"),
    ],
)
def test_products_are_offered_as_people_write_them(installed, name, offer):
    with pytest.raises((ArgumentValueError, UnknownNameError)) as caught:
        installed.target(name)
    assert f"; {offer}" in str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "acme:T41",
            UnknownNameError,
            f"here: unknown acme arch or product 'T41'; did you mean 'T 40'? acme has\n{ACME}",
        ),
        (
            "acme:b1",
            UnknownNameError,
            f"here: unknown acme arch or product 'b1'; it is beta:b1. acme has\n{ACME}",
        ),
        (
            "acme:x 7:zzz",
            ArgumentValueError,
            "here: target 'acme:x 7:zzz' ends with ':zzz', which means nothing; write 'acme:x 7'",
        ),
        ("b1:zzz", UnknownNameError, "here: unknown vendor 'b1'; did you mean 'beta'? b1 is beta:b1"),
        ("x7", ArgumentValueError, "here: target 'x7' may mean acme:a_2 or beta:b1; write one of these"),
        ("old", ArgumentValueError, "here: 'old' is a family of acme's archs; name one of them: a_1"),
        ("acme:old", ArgumentValueError, "here: 'old' is a family of acme's archs; name one of them: a_1"),
        ("beta", ArgumentValueError, "here: target 'beta' is a vendor without an arch; it has\n  b1  Beta X7"),
        (
            "x8",
            ArgumentValueError,
            f"here: target 'x8' {NO_FORM}; known: X7",
        ),
        (
            "40",
            ArgumentValueError,
            f"here: target '40' {NO_FORM}; did you mean 'T 40' or 'Titan 40'?",
        ),
    ],
)
def test_a_name_that_means_no_target_or_several_is_refused_with_all_that_there_are(text, error, message):
    with pytest.raises(error) as caught:
        find_target(text, SPACES, where="here")
    assert str(caught.value) == message


def test_an_arch_is_never_offered_for_a_product(installed):
    with pytest.raises(UnknownNameError) as caught:
        installed.target("nvidia:h300")
    assert str(caught.value).startswith(
        "unknown nvidia arch or product 'h300'; did you mean 'H200' or 'H100'? nvidia has\n  sm_70   V100, "
    )


def test_where_an_arch_is_wanted_a_product_is_told_as_one_and_never_taken_for_an_arch_of_like_spelling(installed):
    with pytest.raises(UnknownNameError) as caught:
        installed.spaces["nvidia"].parse(["h100"], where="plugin.yaml:3")
    assert str(caught.value).startswith("plugin.yaml:3: unknown nvidia arch 'h100'; known: ada, ampere, ")
    assert str(caught.value).endswith(", volta. It is sm_90: an arch is written here.")
    with pytest.raises(UnknownNameError, match=r"^unknown nvidia arch 'h300'; known: ada, ampere, "):
        installed.spaces["nvidia"].parse(["h300"])


@pytest.mark.parametrize(
    "text", ["nvidia:h100:zzz", "nvidia:sm_90:zzz", "amd:gfx942:foo", "cpu:x86_64:", "amd:mi300x:xnack+"]
)
def test_what_stands_behind_an_arch_and_means_nothing_is_refused(installed, text):
    with pytest.raises(ArgumentValueError, match="which means nothing; write '"):
        installed.target(text)


def test_an_exact_arch_is_offered_as_it_is_written(installed):
    with pytest.raises(UnknownNameError, match=r"^unknown nvidia arch 'SM90a'; did you mean 'sm_90a'\?$"):
        installed.spaces["nvidia"].parse(["SM90a"])
    with pytest.raises(
        ArgumentValueError, match=r"^'gfx942:foo' ends with ':foo', which means nothing; write 'gfx942'$"
    ):
        installed.spaces["amd"].parse(["gfx942:foo"])


def test_a_manifest_without_products_serves_as_before(world):
    world.plugin("one")
    assert str(world.registry().target("acme:acme1")) == "acme:acme1"


def test_a_policy_file_takes_a_product_where_it_takes_an_arch(world, tmp_path):
    archs = {"acme1": {"name": "One", "products": ["Rocket 5"], "source": "invented"}}
    world.backend("zeta", lines=[["acme1"]], archs=archs)
    world.plugin("one", {"targets": {"zeta": "any"}})
    file = tmp_path / "policy.yaml"
    file.write_text("schema_version: 1\ntargets:\n  zeta:rocket5: {deny: one}\n", encoding="utf-8")
    decision = world.dispatcher(POLICY=str(file)).decide(world.request(target="zeta:acme1"))
    assert decision.candidate("one.add").rejections[0].text == f"denied by {file.name}:3"


DEVICES = (
    Device(Target("acme", "a_1"), "Titan 40", "acme:0", uuid="A-0"),
    Device(Target("acme", "a_2"), "Turbo X7", None, note="torch was built without acme"),
)


@pytest.mark.parametrize("name", ["acme:0", "A-0", "acme:a_1", "titan40", "acme:Titan 40"])
def test_a_device_is_found_by_torchs_name_its_uuid_or_its_target(name):
    assert find_device(name, DEVICES, SPACES) is DEVICES[0]


def test_a_device_that_torch_does_not_reach_is_told_with_the_reason():
    with pytest.raises(UnknownNameError) as caught:
        find_device("acme:turbox7", DEVICES, SPACES)
    text = "unknown device 'acme:turbox7'; known: acme:0, acme:a_1. torch was built without acme"
    assert str(caught.value) == text
