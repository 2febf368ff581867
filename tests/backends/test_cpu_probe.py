from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from portakernel.tensors import torch_build
from portakernel.tensors.torch_build import TorchBuild
from portakernel.words.target import Target
from portakernel_backends import cpu
from portakernel_backends.cpu.probe import OPTIONS, find

VERSION = """from typing import Optional

__all__ = ['__version__', 'cuda']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
hip: Optional[str] = {hip!r}
xpu: Optional[str] = {xpu!r}
"""


def test_this_machine_has_one_cpu() -> None:
    [device] = find()
    assert device.target.vendor == "cpu"
    assert device.torch_device == "cpu"
    assert device.name
    assert device.driver is None
    assert device.uuid is None


@pytest.mark.parametrize(
    ("machine", "arch"),
    [
        ("x86_64", "x86_64"),
        ("AMD64", "x86_64"),
        ("arm64", "aarch64"),
        ("ARM64", "aarch64"),
        ("aarch64", "aarch64"),
        ("riscv64", "riscv64"),
        ("ppc64le", "ppc64le"),
    ],
)
def test_an_instruction_set_has_one_name(machine: str, arch: str, tmp_path: Path) -> None:
    [device] = find(machine=machine, cpuinfo=tmp_path / "none")
    assert device.target == Target("cpu", arch)


def test_linux_names_the_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654 96-Core Processor \n", encoding="utf-8"
    )
    assert find(machine="x86_64", cpuinfo=cpuinfo)[0].name == "AMD EPYC 9654 96-Core Processor"


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("", None),
        ("model name\t: Some CPU\n", None),
        ("flags\t\t: fpu sse2 avx512f\n", ()),
        ("flags\t\t: fpu avx512_bf16 amx_bf16\nflags\t\t: amx_bf16 avx512_bf16 fpu\n", ("avx512_bf16", "amx_bf16")),
        ("flags\t\t: avx512_bf16\nflags\t\t: fpu\n", ()),
        ("Features\t: fp asimd fphp asimdhp bf16\n", ("bf16", "asimdhp")),
    ],
)
def test_the_features_are_those_that_every_core_has(text: str, features: object, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text, encoding="utf-8")
    assert find(machine="x86_64", cpuinfo=cpuinfo)[0].features == features


def test_the_probe_looks_for_the_features_that_the_manifest_calls_optional() -> None:
    manifest = yaml.safe_load((Path(cpu.__file__).parent / "backend.yaml").read_text(encoding="utf-8"))
    supports = [facts["dtypes"] for facts in manifest["archs"].values()]
    named = [name for support in supports for names in support["optional"].values() for name in names]
    assert sorted(named) == sorted(OPTIONS)
    assert all(set(support["optional"]) <= set(support["emulated"]) for support in supports)


def test_a_cpu_that_nothing_names_is_called_by_its_arch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "")
    assert find(machine="arm64", cpuinfo=tmp_path / "none")[0].name == "aarch64"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sysconf")
def test_memory_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 20}.__getitem__)
    assert find()[0].memory_bytes == 4 << 30


@pytest.mark.parametrize("error", [ValueError("unrecognized configuration name"), OSError(22, "Invalid argument")])
def test_memory_is_left_out_where_the_system_does_not_say(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise error

    monkeypatch.setattr("os.sysconf", refuse, raising=False)
    assert find()[0].memory_bytes is None


def test_a_system_that_names_no_architecture_has_no_device() -> None:
    assert find(machine="") == []


def test_probing_does_not_import_torch() -> None:
    code = """
import sys
from portakernel.tensors import torch_build
from portakernel_backends.cpu import portakernel_targets
assert len(portakernel_targets()) == 1
torch_build.installed()
assert 'torch' not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (TorchBuild("2.13.0+cpu"), "torch 2.13.0 is a CPU build"),
        (TorchBuild("2.13.0+cu130", cuda="13.0"), "torch 2.13.0 is a CUDA build"),
        (TorchBuild("2.13.0+rocm7.0", hip="7.0.51831"), "torch 2.13.0 is a ROCm build"),
        (TorchBuild("2.13.0+xpu", xpu="20260100"), "torch 2.13.0 is an XPU build"),
    ],
)
def test_a_build_is_read_from_the_source_of_torchs_version_module(build: TorchBuild, text: str) -> None:
    source = VERSION.format(version=build.version, cuda=build.cuda, hip=build.hip, xpu=build.xpu)
    assert torch_build.parse(source) == build
    assert str(build) == text


def test_a_source_that_names_no_version_is_no_build() -> None:
    assert torch_build.parse("cuda = '13.0'\n__version__ = compute()\n") is None


def test_the_version_file_of_the_installed_torch_says_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    loaded = torch_build.installed()
    monkeypatch.delitem(sys.modules, "torch.version")
    read = torch_build.installed()
    version = torch.version
    assert read == loaded == TorchBuild(version.__version__, cuda=version.cuda, hip=version.hip, xpu=version.xpu)


def test_an_imported_torch_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.version", SimpleNamespace(__version__="9.9", cuda="99.0", hip=None))
    assert torch_build.installed() == TorchBuild("9.9", cuda="99.0")


def test_no_torch_is_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.version", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert torch_build.installed() is None


def test_an_unreadable_version_file_is_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version.py").write_text("__version__ = (", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "torch.version", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    assert torch_build.installed() is None
