"""What is said of hardware that lacks a dtype or a scale format: with what the device at hand has, and no more."""

from __future__ import annotations

import itertools
import re

import pytest

from portakernel.contracts import contract, own_contracts
from portakernel.deciding.asking import ask
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.hardware_shortfalls import shortfalls
from portakernel.errors import PortakernelError
from portakernel.registry.plugin_manager import PluginManager, installed_packages
from portakernel.registry.registry import Registry
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS
from portakernel.words.target import Device, Target

QUANTISED = [op for op in own_contracts() if contract(op).formats]


@pytest.fixture(scope="module")
def dispatcher() -> Dispatcher:
    ours = [package for package in installed_packages() if package.first_party]
    return Dispatcher(Registry(PluginManager(ours)))


def texts(dispatcher: Dispatcher, op: str, target: str, *, features: tuple[str, ...] | str | None = "absent", **known):
    found = Target.parse(target)
    device = None if isinstance(features, str) else Device(found, "a device", "cpu", features=features)
    request = ask(contract(op), found, device=device, **known)
    return [shortfall.text for shortfall in shortfalls(request, dispatcher.registry)]


@pytest.mark.parametrize(
    ("target", "dtype", "features", "expected"),
    [
        ("cpu:x86_64", "bfloat16", ("avx512_bf16",), []),
        ("cpu:x86_64", "bfloat16", ("amx_bf16",), []),
        ("cpu:x86_64", "float16", ("avx512_fp16",), []),
        ("cpu:aarch64", "bfloat16", ("bf16", "asimdhp"), []),
        (
            "cpu:x86_64",
            "bfloat16",
            ("avx512_fp16",),
            ["bfloat16 is emulated on cpu:x86_64, by conversion to a wider type"],
        ),
        ("cpu:x86_64", "bfloat16", (), ["bfloat16 is emulated on cpu:x86_64, by conversion to a wider type"]),
        (
            "cpu:x86_64",
            "bfloat16",
            None,
            [
                (
                    "bfloat16 is emulated on cpu:x86_64, by conversion to a wider type, unless the processor has"
                    " avx512_bf16 or amx_bf16"
                )
            ],
        ),
        (
            "cpu:aarch64",
            "float16",
            "absent",
            ["float16 is emulated on cpu:aarch64, by conversion to a wider type, unless the processor has asimdhp"],
        ),
    ],
)
def test_what_some_processors_of_an_arch_have_is_said_of_the_one_at_hand(dispatcher, target, dtype, features, expected):
    assert texts(dispatcher, "add", target, dtypes=dtype, features=features) == expected


def test_a_scale_format_goes_as_far_as_its_elements_dtypes(dispatcher):
    assert texts(dispatcher, "scaled_mm", "nvidia:sm_80", formats="mxfp8") == [
        (
            "scale format mxfp8 is emulated on nvidia:sm_80 for float8_e5m2, by conversion to a wider type; for"
            " float8_e4m3fn it is left to kernels that decode it themselves"
        )
    ]
    decoded = "it is left to kernels that decode it themselves"
    both = {"a": "float8_e4m3fn", "b": "float8_e4m3fn"}
    assert texts(dispatcher, "scaled_mm", "nvidia:sm_80", formats="mxfp8", dtypes=both) == [
        f"float8_e4m3fn is neither native nor emulated on nvidia:sm_80: {decoded}",
        "float8_e8m0fnu is emulated on nvidia:sm_80, by conversion to a wider type",
        f"scale format mxfp8 of float8_e4m3fn is neither native nor emulated on nvidia:sm_80: {decoded}",
    ]
    assert texts(dispatcher, "scaled_mm", "nvidia:sm_100", formats="mxfp8", dtypes=both) == []


@pytest.mark.parametrize("op", QUANTISED)
def test_no_format_is_called_emulated_where_its_elements_are_called_absent(dispatcher, op):
    for backend in dispatcher.registry.backends.values():
        for arch, name, dtype in itertools.product(backend.archs, SCALE_FORMATS, DTYPES):
            try:
                request = ask(contract(op), Target(backend.vendor, arch), formats=name, dtypes=dtype)
            except PortakernelError:
                continue
            found = shortfalls(request, dispatcher.registry)
            absent = {shortfall.name for shortfall in found if shortfall.state == "absent"}
            emulated = [re.match(r"scale format .* for (\w+),", s.text) for s in found if s.kind == "format"]
            assert absent.isdisjoint(match[1] for match in emulated if match)
            elements = {request.dtypes.get(holder) for holder in request.formats}
            if elements <= absent:
                assert all(s.state == "absent" for s in found if s.kind == "format"), (arch, name, dtype)


@pytest.mark.parametrize("op", own_contracts())
def test_dtypes_are_assumed_only_of_those_that_the_op_takes_with_the_formats_asked_for(dispatcher, op):
    described = contract(op)
    for target, name in itertools.product(("nvidia:sm_80", "nvidia:sm_100", "amd:gfx942"), SCALE_FORMATS):
        try:
            request = ask(described, Target.parse(target), formats=name if described.formats else None)
        except PortakernelError:
            continue
        made = described.at(request.values)
        for candidate in dispatcher.decide(request).candidates:
            for assumed in candidate.assumed:
                argument, _, listed = assumed.partition(" in ")
                if argument in made.typed and listed.split(", ")[0] in DTYPES:
                    taken = set(listed.split(", "))
                    assert taken < set(made.possible_dtypes(argument)), (candidate.kernel.name, assumed)


def test_a_kernel_that_takes_fewer_dtypes_than_the_op_is_assumed_to_be_given_these(dispatcher):
    request = ask(contract("scaled_mm"), Target.parse("nvidia:sm_89"), formats="tensor")
    row = next(c for c in dispatcher.decide(request).candidates if c.kernel.name == "torch.scaled_mm")
    assert [text for text in row.assumed if " in float8" in text] == [
        "a in float8_e4m3fn, float8_e5m2",
        "b in float8_e4m3fn",
    ]
