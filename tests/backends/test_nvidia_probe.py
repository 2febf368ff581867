# ruff: noqa: N802 - the methods of the fake library have the names of NVML's functions
from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from portakernel.tensors.torch_build import TorchBuild
from portakernel.tensors.visibility import visible_to_cuda
from portakernel.words.target import Device, Target
from portakernel_backends.nvidia.probe import find

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, UNKNOWN = 3, 4, 6, 999
GPU_0 = "GPU-d83c984e-6b6f-7bff-8394-c9efadbce8bb"
GPU_1 = "GPU-cadb0535-5296-6fa4-010b-7b5354b3f50e"
MIG_0 = "MIG-1a2b0000-0000-0000-0000-000000000000"
MIG_1 = "MIG-1a2c0000-0000-0000-0000-000000000000"
PRESUMED = (
    "its number is presumed, because the GPUs of this machine differ and CUDA orders them by speed: "
    "set CUDA_DEVICE_ORDER=PCI_BUS_ID to fix it"
)
ONE_MIG = (
    "CUDA enumerates only one MIG device per process, and takes another: set CUDA_VISIBLE_DEVICES to this one's uuid"
)


@dataclass(frozen=True)
class FakeGpu:
    uuid: str = GPU_0
    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    memory: int | None = 150754820096
    bus: int = 1
    migs: tuple[FakeGpu | None, ...] | None = None
    handle_code: int = 0


@dataclass
class FakeNvml:
    """A ctypes library in Python: takes byref objects and buffers, fills them, returns a code."""

    gpus: tuple[FakeGpu, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    raises: str = ""
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answer = getattr(type(self), f"_{name}", None)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.raises:
                raise OSError(f"{name} crashed")
            if name in self.codes:
                return self.codes[name]
            return answer(self, *arguments) if answer else 0

        return call

    def _at(self, handle: Any) -> FakeGpu:
        found = [*self.gpus, *(mig for gpu in self.gpus for mig in gpu.migs or () if mig)]
        at: int = handle.value - 1
        return found[at]

    def _nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = b"580.159.04"
        return 0

    def _nvmlDeviceGetCount_v2(self, out: Any) -> int:
        out._obj.value = len(self.gpus)
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        at: int = index.value
        out._obj.value = at + 1
        return self.gpus[at].handle_code

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = self._at(handle).name.encode()
        return 0

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = self._at(handle).uuid.encode()
        return 0

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> int:
        out._obj.bus = self._at(handle).bus
        return 0

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self._at(handle).capability
        return 0

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:
        memory = self._at(handle).memory
        if memory is None:
            return NOT_SUPPORTED
        out._obj.total = memory
        return 0

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        current._obj.value = self._at(handle).migs is not None
        return 0

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, out: Any) -> int:
        out._obj.value = len(self._at(handle).migs or ())
        return 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, out: Any) -> int:
        mig = (self._at(handle).migs or ())[index.value]
        if mig is None:
            return NOT_FOUND
        found = [*self.gpus, *(each for gpu in self.gpus for each in gpu.migs or () if each)]
        out._obj.value = found.index(mig) + 1
        return 0


TWO = (FakeGpu(), FakeGpu(uuid=GPU_1, bus=2))
MIXED = (
    FakeGpu(uuid=GPU_0, name="NVIDIA A10", capability=(8, 6), bus=1),
    FakeGpu(uuid=GPU_1, name="NVIDIA H200", capability=(9, 0), bus=2),
)
SPLIT = (
    FakeGpu(
        migs=(FakeGpu(MIG_0, "NVIDIA H200 MIG 1g.18gb", memory=18), None, FakeGpu(MIG_1, "NVIDIA H200 MIG 3g.71gb"))
    ),
    FakeGpu(uuid=GPU_1, bus=2),
)


def cuda_build() -> TorchBuild:
    return TorchBuild("2.13.0+cu130", cuda="13.0")


def probe(
    library: FakeNvml | tuple[FakeGpu, ...],
    environ: Mapping[str, str] | None = None,
    build: Callable[[], TorchBuild | None] = cuda_build,
) -> list[Device]:
    nvml = FakeNvml(library) if isinstance(library, tuple) else library
    return find(library=lambda: nvml, environ=environ or {}, build=build)


def numbered(devices: list[Device]) -> list[tuple[str | None, str | None]]:
    return [(device.uuid, device.torch_device) for device in devices]


def test_a_gpu_is_described_whole() -> None:
    assert probe((FakeGpu(),)) == [
        Device(
            target=Target("nvidia", "sm_90"),
            name="NVIDIA H200",
            torch_device="cuda:0",
            uuid=GPU_0,
            memory_bytes=150754820096,
            driver="580.159.04",
        )
    ]


def test_two_gpus_of_one_kind_are_told_apart_and_numbered_by_pci_address() -> None:
    devices = probe((FakeGpu(uuid=GPU_1, bus=7), FakeGpu(uuid=GPU_0, bus=3)))
    assert numbered(devices) == [(GPU_0, "cuda:0"), (GPU_1, "cuda:1")]
    assert [device.note for device in devices] == ["", ""]


def test_capabilities_of_two_digits_name_the_arch() -> None:
    archs = [
        probe((FakeGpu(capability=capability),))[0].target.arch for capability in ((8, 9), (10, 0), (11, 0), (12, 1))
    ]
    assert archs == ["sm_89", "sm_100", "sm_110", "sm_121"]


def test_gpus_that_differ_are_numbered_by_capability_and_the_number_is_called_presumed() -> None:
    devices = probe(MIXED)
    assert numbered(devices) == [(GPU_1, "cuda:0"), (GPU_0, "cuda:1")]
    assert [device.note for device in devices] == [PRESUMED, PRESUMED]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [(GPU_0, "cuda:0"), (GPU_1, "cuda:1")]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}, [(GPU_1, "cuda:0")]),
        ({"CUDA_VISIBLE_DEVICES": f"{GPU_0},{GPU_1}"}, [(GPU_0, "cuda:0"), (GPU_1, "cuda:1")]),
    ],
)
def test_gpus_that_differ_are_numbered_for_certain_by_pci_order_and_by_uuids(
    environ: Mapping[str, str], expected: list[tuple[str, str]]
) -> None:
    devices = probe(MIXED, environ)
    assert numbered(devices) == expected
    assert {device.note for device in devices} == {""}


@pytest.mark.parametrize(
    ("build", "note"),
    [
        (TorchBuild("2.13.0+cpu"), "torch 2.13.0 is a CPU build: install a CUDA build to use this device"),
        (TorchBuild("2.13.0", hip="7.0"), "torch 2.13.0 is a ROCm build: install a CUDA build to use this device"),
        (None, "torch is not installed: install a CUDA build to use this device"),
    ],
)
def test_a_torch_without_cuda_reaches_no_device_and_the_note_says_why(build: TorchBuild | None, note: str) -> None:
    devices = probe(MIXED, build=lambda: build)
    assert [device.torch_device for device in devices] == [None, None]
    assert [device.note for device in devices] == [note, note]


def test_cuda_takes_the_first_mig_device_alone_and_the_others_say_how_to_be_chosen() -> None:
    devices = probe(SPLIT)
    assert numbered(devices) == [(MIG_0, "cuda:0"), (MIG_1, None), (GPU_1, None)]
    assert [device.note for device in devices] == ["", ONE_MIG, ONE_MIG]
    assert devices[0].name == "NVIDIA H200 MIG 1g.18gb"
    assert devices[0].memory_bytes == 18
    assert {device.target for device in devices} == {Target("nvidia", "sm_90")}


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (MIG_1, [(MIG_1, "cuda:0")]),
        ("MIG-1a2c", [(MIG_1, "cuda:0")]),
        ("MIG-1a2", []),
        (GPU_1, [(GPU_1, "cuda:0")]),
        (GPU_0, [(MIG_0, "cuda:0"), (MIG_1, None)]),
        ("1", [(GPU_1, "cuda:0")]),
        ("0", [(MIG_0, "cuda:0"), (MIG_1, None)]),
    ],
)
def test_a_mask_chooses_among_mig_devices_and_gpus(mask: str, expected: list[tuple[str, str | None]]) -> None:
    assert numbered(probe(SPLIT, {"CUDA_VISIBLE_DEVICES": mask})) == expected


def test_mig_mode_without_a_mig_device_leaves_nothing_to_run_on() -> None:
    [device] = probe((FakeGpu(migs=()),))
    assert device.torch_device is None
    assert device.note == (
        "MIG mode is on and no MIG device exists: create one with nvidia-smi mig, or turn MIG mode off"
    )


def test_a_gpu_that_shares_the_hosts_memory_has_no_size_of_its_own() -> None:
    assert probe((FakeGpu(memory=None),))[0].memory_bytes is None


def test_a_gpu_that_this_process_may_not_open_is_left_out() -> None:
    devices = probe((FakeGpu(handle_code=NO_PERMISSION), FakeGpu(uuid=GPU_1, bus=2)))
    assert numbered(devices) == [(GPU_1, "cuda:0")]


# Every line is what cuInit and cuDeviceGetUuid_v2 answered on two H200, driver 580.159.04, 2026-11-20.
@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (None, (0, 1)),
        ("", ()),
        ("-1", ()),
        ("0", (0,)),
        ("1,0", (1, 0)),
        ("0,0", ()),
        ("0,1,0", ()),
        ("0,-1,1", (0,)),
        ("0,7,1", (0,)),
        (" 1", (1,)),
        ("1 ,0", (1, 0)),
        ("0, 1", (0, 1)),
        ("0,,1", (0,)),
        (",0", ()),
        ("1gpu,0", (1, 0)),
        ("+1", (1,)),
        ("01", (1,)),
        ("0x1", (0,)),
        ("1.5", (1,)),
        ("abc", ()),
        ("NoDevFiles", ()),
        ("GPU", ()),
        ("GPU-", ()),
        ("GPU--", ()),
        ("GPU-/", ()),
        (GPU_0, (0,)),
        (f"{GPU_1},{GPU_0}", (1, 0)),
        (f"{GPU_0},{GPU_0}", ()),
        ("GPU-d83c", (0,)),
        ("GPU-d83c-", (0,)),
        ("GPU-cadb0535,GPU-d83c984e", (1, 0)),
        ("GPU-d83c ", ()),
        ("GPU-d83czz", ()),
        (GPU_0.upper(), (0,)),
        (GPU_0.lower(), ()),
        ("GPU-" + GPU_0[4:].replace("-", ""), (0,)),
        (f"{GPU_0} ", (0,)),
        (f"{GPU_0}00", (0,)),
        (f"{GPU_0}zz,{GPU_1}", (0, 1)),
        (f" {GPU_0}", ()),
        (f"{GPU_0}, {GPU_1}", (0,)),
        (f"{GPU_0},1", (0,)),
        (f"0,{GPU_1}", (0,)),
        (f"{GPU_0},GPU-ffff,{GPU_1}", (0,)),
        (f"{GPU_0},", (0,)),
        (f"MIG-{GPU_1[4:]}", (1,)),
        (f"{GPU_0},MIG-{GPU_1[4:]}", (0, 1)),
        (f"MIG-{GPU_0}/1/0", ()),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(mask: str | None, visible: tuple[int, ...]) -> None:
    assert visible_to_cuda(mask, [GPU_0, GPU_1]) == visible
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert [device.uuid for device in probe(TWO, environ)] == [(GPU_0, GPU_1)[at] for at in visible]


def test_a_prefix_that_two_gpus_share_names_neither() -> None:
    assert visible_to_cuda("GPU-ab", ["GPU-ab01", "GPU-ab02"]) == ()


def test_a_mig_uuid_of_a_driver_before_r470_is_matched_as_it_stands() -> None:
    old = f"MIG-{GPU_0}/1/0"
    assert visible_to_cuda(old, [GPU_0, old]) == (1,)


FUNCTIONS = (
    "nvmlInit_v2",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
)
# Without these a device is still a device.
SPARED = {
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMigDeviceHandleByIndex",
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_fails_costs_at_most_the_devices_that_needed_it(function: str) -> None:
    library = FakeNvml(SPLIT, codes={function: UNKNOWN})
    devices = probe(library)
    assert function in library.calls
    if function in SPARED:
        assert devices
    if library.calls != ["nvmlInit_v2"]:
        assert library.calls[-1] == "nvmlShutdown"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_raises_costs_the_devices_and_leaves_its_reason_in_the_log(
    function: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="portakernel"):
        assert probe(FakeNvml(SPLIT, raises=function)) == []
    assert f"OSError: {function} crashed" in caplog.text


def test_a_driver_without_a_function_is_an_old_driver_not_a_failure() -> None:
    class OldNvml(FakeNvml):
        def __getattr__(self, name: str) -> Callable[..., int]:
            if name == "nvmlDeviceGetMigMode":
                raise AttributeError(name)
            return super().__getattr__(name)

    assert numbered(probe(OldNvml(TWO))) == [(GPU_0, "cuda:0"), (GPU_1, "cuda:1")]


def test_no_driver_means_no_device() -> None:
    assert find(library=lambda: None, environ={}, build=cuda_build) == []


def test_a_loader_or_a_torch_that_raises_means_no_device() -> None:
    def broken() -> Any:
        raise RuntimeError("broken")

    assert find(library=broken, environ={}, build=cuda_build) == []
    assert find(library=lambda: FakeNvml(TWO), environ={}, build=broken) == []


def test_probing_this_machine_imports_neither_torch_nor_cuda() -> None:
    code = """
import sys
from portakernel_backends.nvidia import portakernel_targets
from portakernel_backends.nvidia.probe import find
assert portakernel_targets() == find()
loaded = {name.partition('.')[0] for name in sys.modules}
assert not loaded & {'torch', 'triton', 'cuda', 'pynvml'}, loaded
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
