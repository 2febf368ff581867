"""Adapters of other libraries: what they give those, what they claim of them, and what is said without them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

import portakernel
from portakernel.authoring import CannotRun
from portakernel.claims.capability import ReasonCode
from portakernel.cli.advice import advice
from portakernel.config import Config
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry
from portakernel.tensors.torch_build import TorchBuild
from portakernel.words.target import Device, Target
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.venue import Venue, claimed_targets
from portakernel_plugins.conch.addressing import check_gemma, check_halves, check_rows
from portakernel_plugins.flashinfer import probe

# Tests are imported by path, and so is what stands beside them.
_SPEC = importlib.util.spec_from_file_location("peer_stand_ins", Path(__file__).with_name("peer_stand_ins.py"))
stand_ins = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(stand_ins)

INSTALL = {
    "conch": "pip install 'conch-triton-kernels>=1.3,<2'",
    "flash_attn": "pip install flash-attn-4==4.0.0b36",
    "flashinfer": "pip install 'flashinfer-python>=0.7.2,<0.8'",
    "humming": "pip install 'humming-kernels>=0.1.19,<0.2'",
    "liger": "pip install 'liger-kernel>=0.8.5,<0.9'",
    "quack": "pip install 'quack-kernels>=0.6.5,<0.7'",
}
REGISTRY = Registry(PluginManager())
KERNELS = {name: kernel for name, kernel in REGISTRY.kernels.items() if kernel.plugin in INSTALL}
HOPPER = Device(Target("nvidia", "sm_90"), "H200", "cuda:0")


@pytest.fixture
def stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.install(monkeypatch)
    rotary = importlib.import_module("portakernel_plugins.flashinfer.rotary_embedding")
    monkeypatch.setattr(rotary, "compiler", lambda: None)


@pytest.mark.turns(3)
@pytest.mark.usefixtures("stands_in")
@pytest.mark.parametrize("name", KERNELS)
def test_with_a_library_that_does_what_it_says_every_kernel_conforms(name, units_in_turn):
    kernel = replace(KERNELS[name], disabled=None)
    registry = Registry(REGISTRY.manager)
    registry.kernels = MappingProxyType({**registry.kernels, name: kernel})
    targets = tuple(target for _, claim in kernel.variants for target in claimed_targets(claim, registry.spaces))
    # the smallest cases that have what a claim names
    large = ("paged_attention", "mla_decode", "int4_mm", "moe_mlp")
    most = 65536 if kernel.op in large else 32768 if "sinks" in kernel.features else 4096
    venue = Venue("cpu", targets[:1], mode="stand-ins", max_elements=most, enter=nullcontext)
    suite = Suite(Dispatcher(registry, Config()), kernel, venue, 20261122)
    results = [result for unit in units_in_turn(suite, lambda _: True) for result in suite.run(unit)]
    assert [str(result) for result in results if result.status == "failed"] == []
    assert {"forward", "out", "purity", "view", "coverage"} <= {r.aspect for r in results if r.status == "passed"}


@pytest.mark.parametrize(("module", "name"), stand_ins.STAND_INS, ids=lambda text: text)
def test_the_installed_library_takes_the_arguments_that_the_stand_in_takes(module, name):
    real = getattr(pytest.importorskip(module, reason="the library is not installed"), name)
    taken = inspect.signature(stand_ins.STAND_INS[module, name]).parameters
    assert list(inspect.signature(real).parameters)[: len(taken)] == list(taken)


@pytest.mark.usefixtures("stands_in")
@pytest.mark.parametrize(("module", "named"), [("flashinfer.moe_mlp", "FlashInfer"), ("quack.grouped_mm", "QuACK")])
def test_more_assignments_than_32_bits_number_are_left_to_others(module, named):
    # no memory behind them
    x, w_in, w_out = torch.zeros(1, 8).expand(2**28, 8), torch.zeros(3, 16, 8), torch.zeros(3, 8, 8)
    weights, experts = torch.zeros(1, 1).expand(2**28, 8), torch.zeros(1, 1, dtype=torch.int32).expand(2**28, 8)
    refused = f"limit: needs T * K <= 2147483647, since {named} numbers rows in 32 bits; this is 2147483648"
    moe_mlp = importlib.import_module(f"portakernel_plugins.{module}").moe_mlp
    with pytest.raises(CannotRun, match=re.escape(f"{refused}: call it with fewer tokens at a time")):
        moe_mlp(x, w_in, w_out, weights, experts, activation="silu")


@pytest.mark.parametrize("plugin", INSTALL)
def test_a_plugin_s_package_is_imported_without_its_library_torch_or_triton(plugin):
    code = f"import sys, portakernel_plugins.{plugin}; print(sorted(sys.modules.keys() & {{'torch', 'triton'}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", KERNELS)
def test_a_library_that_is_not_there_is_told_with_the_line_that_installs_it(name, monkeypatch):
    kernel = KERNELS[name]
    module, specifier = next(iter(kernel.requires.items()))
    monkeypatch.setattr("portakernel.deciding.readiness.installed_version", lambda module, _="": None)
    (rejection, *_) = Dispatcher(REGISTRY, Config()).readiness.not_installed(kernel)
    assert rejection.code is ReasonCode.NOT_INSTALLED
    assert rejection.text == f"needs {module} {specifier}; it is not installed"
    assert advice(kernel, rejection) == INSTALL[kernel.plugin]


def test_what_is_not_installed_costs_calls_nothing(monkeypatch):
    build = TorchBuild("2.11.0+cu130", cuda="13.0")
    monkeypatch.setattr("portakernel.tensors.torch_build.installed", lambda: build)
    monkeypatch.setattr(
        "portakernel.deciding.readiness.installed_version", lambda module, _="": "3.9" if module == "triton" else None
    )
    here = {kernel.plugin for kernel in Dispatcher(REGISTRY, Config()).kernels_here("rms_norm")}
    assert here == {"triton"}


def test_no_peer_goes_before_a_kernel_of_triton_torch_or_inductor():
    def priorities(kernel):
        return [rule.number for rule in kernel.priority.rules]

    highest = max(number for kernel in KERNELS.values() for number in priorities(kernel))
    ours = [k for k in REGISTRY.kernels.values() if k.plugin in ("triton", "torch", "inductor")]
    assert highest < min(number for kernel in ours for number in priorities(kernel))


def test_what_is_wrong_is_switched_off_and_says_why():
    decision = portakernel.explain("cross_entropy", target="nvidia:sm_90", dtype="bfloat16")
    (rejection,) = decision.candidate("quack.cross_entropy").rejections
    assert rejection.code is ReasonCode.DISABLED
    assert "infinite losses and NaN" in rejection.text


@pytest.mark.parametrize(
    ("op", "kernel", "dtype", "shape", "served"),
    [
        ("rms_norm", "quack.rms_norm", "bfloat16", {"x": (4, 4096)}, True),
        ("rms_norm", "quack.rms_norm", "bfloat16", {"x": (4, 4097)}, False),  # loads of two bytes
        ("rms_norm", "quack.rms_norm", "float32", {"x": (4, 4097)}, True),
        ("add_rms_norm", "quack.add_rms_norm", "bfloat16", {"x": (4, 4096)}, False),  # the sum's norm before rounding
        ("rms_norm", "conch.rms_norm", "bfloat16", {"x": (4, 4096)}, False),  # rounded before the weight
        ("silu_and_mul", "conch.silu_and_mul", "float16", {"x": (4, 4096)}, False),
        ("silu_and_mul", "liger.silu_and_mul", "bfloat16", {"x": (4, 4096)}, False),
        ("silu_and_mul", "flashinfer.silu_and_mul", "bfloat16", {"x": (4, 4096)}, True),
        ("silu_and_mul", "flashinfer.silu_and_mul", "float32", {"x": (4, 4096)}, False),
        ("rms_norm", "liger.rms_norm", "bfloat16", {"x": (4, 65537)}, False),
        ("linear_cross_entropy", "liger.linear_cross_entropy", "bfloat16", None, False),  # 16-bit logits
        ("linear_cross_entropy", "liger.linear_cross_entropy", "float32", None, True),
    ],
)
def test_dtypes_and_sizes_are_claimed_where_the_numbers_are_right(op, kernel, dtype, shape, served):
    given = {} if shape is None else {"shape": shape}
    candidate = portakernel.explain(op, target="nvidia:sm_90", dtype=dtype, **given).candidate(kernel)
    assert (candidate.status != "rejected") == served


def test_conch_numbers_in_32_bits_and_adds_one_to_gemma_s_weight():
    assert check_rows(M=2**16, N=2**15 - 1) is None
    assert check_halves(M=2**15, N=2**15 - 1) is None
    assert check_gemma(M=4, N=8, weight_offset=1.0) is None
    refused = check_rows(M=2**16, N=2**15), check_halves(M=2**16, N=2**15 - 1), check_gemma(M=4, N=8, weight_offset=0.0)
    assert [(r.code, r.parameter) for r in refused if r is not None] == [
        (ReasonCode.LIMIT, "M"),
        (ReasonCode.LIMIT, "M"),
        (ReasonCode.FEATURE, "weight_offset"),
    ]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Puts executables on an otherwise empty path, in a place without CUDA."""

    def put(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch(mode=0o755)

    for variable in ("CUDA_PATH", "FLASHINFER_NVCC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return put


def test_flashinfer_needs_nvcc_and_ninja(tools):
    rejection = probe.ready(HOPPER)
    assert rejection is not None
    assert rejection.code is ReasonCode.MISSING_TOOLCHAIN
    assert rejection.text == (
        "FlashInfer compiles its CUDA kernels with nvcc and ninja, and finds no nvcc and no ninja; install CUDA's"
        " toolkit (or set CUDA_HOME) and ninja, or install flashinfer-jit-cache"
    )
    tools("ninja", "nvcc")  # CUDA_HOME says that it is elsewhere
    assert "finds no nvcc; install" in str(probe.ready(HOPPER))
    tools("cuda/bin/nvcc")
    assert probe.ready(HOPPER) is None


@pytest.mark.usefixtures("tools")
def test_flashinfer_needs_no_compiler_for_what_was_built_ahead(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "flashinfer_jit_cache" else None)
    assert probe.ready(HOPPER) is None
