"""Why a build of torch for accelerators finds none: said by ``portakernel doctor``, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from portakernel.cli.doctor.absence import absence
from portakernel.cli.doctor.diagnosis import Diagnosis
from portakernel.cli.doctor.findings import Finding, findings
from portakernel.runtime import dispatcher
from portakernel.tensors import torch_build
from portakernel.tensors.torch_build import TorchBuild
from portakernel.words.target import Device, Target

CUDA, ROCM, XPU = (TorchBuild("2.13.0+x", **{platform: "13.0"}) for platform in ("cuda", "hip", "xpu"))
DRIVER = ["proc/driver/nvidia/version"]
NONE = "and no device of that kind is visible"


def why(build: TorchBuild, root: Path, files: list[str], libraries: set[str] = frozenset(), **environ: str):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("")
    library = {name: f"lib{name}.so.1" for name in libraries}.get
    found = absence(build, environ=environ, root=root, library=library)
    assert found is not None
    return found.what.partition(f", {NONE}: ")[2], found.action


@pytest.mark.parametrize(
    ("files", "libraries", "environ", "reason", "action"),
    [
        (
            [],
            set(),
            {},
            "NVIDIA's driver is not installed (neither its kernel module nor libcuda.so.1 is there)",
            "inst",
        ),
        (
            DRIVER,
            set(),
            {},
            "NVIDIA's kernel module is loaded, and libcuda.so.1 is not found",
            "in a container, start ",
        ),
        ([], {"cuda"}, {}, "libcuda.so.1 is there, and NVIDIA's kernel module is not loaded", "`nvidia-smi` says why"),
        (DRIVER, {"cuda"}, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES='' hides every device", "unset CUDA_V"),
        (DRIVER, {"cuda"}, {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES='-1' hides every device", "unset "),
        (DRIVER, {"cuda"}, {"CUDA_VISIBLE_DEVICES": "0"}, "the driver is there, and reports none", "`nvidia-smi` says"),
        (DRIVER, {"cuda"}, {}, "the driver is there, and reports none", "`nvidia-smi` says what the driver sees"),
    ],
)
def test_a_cuda_build_without_a_device_says_why(tmp_path, files, libraries, environ, reason, action):
    found = why(CUDA, tmp_path, files, libraries, **environ)
    assert found[0] == reason
    assert found[1].startswith(action)


@pytest.mark.parametrize(
    ("files", "environ", "reason"),
    [
        ([], {}, "AMD's kernel driver is not there (/dev/kfd is missing)"),
        (["dev/kfd"], {"ROCR_VISIBLE_DEVICES": ""}, "ROCR_VISIBLE_DEVICES='' hides every device"),
        (["dev/kfd"], {"HIP_VISIBLE_DEVICES": "-1"}, "HIP_VISIBLE_DEVICES='-1' hides every device"),
        (["dev/kfd"], {"HIP_VISIBLE_DEVICES": ""}, "the driver is there, and reports none"),
        (["dev/kfd"], {"CUDA_VISIBLE_DEVICES": "x"}, "CUDA_VISIBLE_DEVICES='x' hides every device"),
    ],
)
def test_a_rocm_build_without_a_device_says_why(tmp_path, files, environ, reason):
    assert why(ROCM, tmp_path, files, **environ)[0] == reason


@pytest.mark.parametrize(
    ("files", "environ", "reason"),
    [
        ([], {}, "no driver of a graphics device is there (/dev/dri is missing)"),
        (["dev/dri/card0"], {"ZE_AFFINITY_MASK": "7"}, "ZE_AFFINITY_MASK='7' may hide it"),
        (["dev/dri/card0"], {}, "Level Zero reports none"),
    ],
)
def test_an_xpu_build_without_a_device_says_why(tmp_path, files, environ, reason):
    assert why(XPU, tmp_path, files, **environ)[0] == reason


def test_a_cpu_build_misses_nothing():
    assert absence(TorchBuild("2.13.0+cpu")) is None


def found_with(monkeypatch: pytest.MonkeyPatch, *devices: Device) -> list[Finding]:
    monkeypatch.setattr(torch_build, "installed", lambda: CUDA)
    return findings(Diagnosis(dispatcher(), None, devices, (), (), (), None))


@pytest.mark.parametrize("devices", [(), (Device(Target("cpu", "x86_64"), "a CPU", "cpu"),)])
def test_doctor_calls_a_cuda_build_without_a_device_in_need_of_attention(monkeypatch, devices):
    head = f"torch 2.13.0 is a CUDA build, {NONE}: "
    (finding,) = [finding for finding in found_with(monkeypatch, *devices) if finding.what.startswith(head)]
    assert finding.state == "attention"
    assert finding.action


def test_doctor_misses_no_device_where_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Device(Target("nvidia", "sm_90"), "NVIDIA H200", "cuda:0")
    unreached = Device(Target("nvidia", "sm_90"), "NVIDIA H200", None, note="MIG mode is on: create a MIG device")
    for device in (here, unreached):
        assert not [finding for finding in found_with(monkeypatch, device) if NONE in finding.what]


def test_this_machines_doctor_says_nothing_of_devices_that_its_torch_was_not_built_for(run: Callable) -> None:
    build = torch_build.installed()
    assert build is not None
    said = [finding["what"] for finding in run("doctor --json").json["findings"] if NONE in finding["what"]]
    assert bool(said) <= bool(build.cuda or build.hip or build.xpu)
