from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from portakernel.tensors.torch_build import TorchBuild
from portakernel.words.target import Device, Target
from portakernel_backends.apple import sysctl
from portakernel_backends.apple.probe import find

VIRTUAL = "a virtual machine: its Metal device offers less than the chip's"
UNKNOWN = "the chip's name is none that is known here"


@dataclass
class FakeLibrary:
    """A C library in Python that knows the values of some names, and fails the call with the number in ``fails``."""

    values: Mapping[str, str]
    fails: int = -1
    calls: list[str] = field(default_factory=list)

    def sysctlbyname(self, name: bytes, old: Any, size: Any, new: Any, new_size: Any) -> int:
        self.calls.append(name.decode())
        value = self.values.get(name.decode())
        if value is None or len(self.calls) - 1 == self.fails:
            return -1
        if old is None:
            size._obj.value = len(value.encode()) + 1
        else:
            old.value = value.encode()
        return 0


def mac_build() -> TorchBuild:
    return TorchBuild("2.13.0")


def probe(
    chip: str | None = "Apple M3 Max",
    *,
    machine: str = "arm64",
    macos: str = "26.1",
    build: Callable[[], TorchBuild | None] = mac_build,
) -> list[Device]:
    library = FakeLibrary({} if chip is None else {"machdep.cpu.brand_string": chip})
    return find(library=lambda: library, machine=machine, macos=macos, build=build)


def test_a_gpu_is_described_whole() -> None:
    assert probe() == [
        Device(
            target=Target("apple", "m3"),
            name="Apple M3 Max",
            torch_device="mps:0",
            uuid=None,
            memory_bytes=None,
            driver="macOS 26.1",
        )
    ]


@pytest.mark.parametrize(
    ("chip", "arch"),
    [
        ("Apple M1", "m1"),
        ("Apple M1 Pro", "m1"),
        ("Apple M2 Ultra", "m2"),
        ("Apple M4 Max", "m4"),
        ("Apple M5", "m5"),
        ("Apple M6", "m6"),
        ("Apple M10 Pro", "m10"),
        ("Apple A18 Pro", "a18"),
    ],
)
def test_a_chip_belongs_to_its_series(chip: str, arch: str) -> None:
    [device] = probe(chip)
    assert device.target == Target("apple", arch)
    assert device.name == chip
    assert device.note == ""


@pytest.mark.parametrize(
    ("chip", "arch", "name", "note"),
    [
        ("Apple M1 (Virtual)", "m1", "Apple M1 (Virtual)", VIRTUAL),
        ("Apple processor", "unknown", "Apple processor", UNKNOWN),
        (None, "unknown", "Apple GPU", UNKNOWN),
    ],
)
def test_a_virtual_and_a_nameless_chip_say_what_they_are(chip: str | None, arch: str, name: str, note: str) -> None:
    [device] = probe(chip)
    assert (device.target.arch, device.name, device.note, device.torch_device) == (arch, name, note, "mps:0")


@pytest.mark.parametrize(
    ("macos", "build", "note"),
    [
        ("26.1", None, "torch is not installed: install it to use this device"),
        ("13.7.4", mac_build(), "torch reaches Metal from macOS 14 on: this is macOS 13.7.4"),
    ],
)
def test_a_device_that_torch_does_not_reach_says_why(macos: str, build: TorchBuild | None, note: str) -> None:
    [device] = probe(macos=macos, build=lambda: build)
    assert (device.torch_device, device.note) == (None, note)


def test_a_system_that_does_not_tell_its_version_is_taken_as_new_enough() -> None:
    [device] = probe(macos="")
    assert (device.torch_device, device.driver) == ("mps:0", None)


def test_rosetta_and_intels_macs_have_no_device_that_torch_supports() -> None:
    assert probe("VirtualApple @ 2.50GHz", machine="x86_64") == []


def test_another_system_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert sysctl.load() is None
    assert find(machine="arm64", macos="26.1", build=mac_build) == []


@pytest.mark.parametrize("fails", [0, 1])
def test_a_call_that_fails_is_a_value_that_is_not_told(fails: int) -> None:
    library = FakeLibrary({"hw.model": "Mac16,1"}, fails=fails)
    assert sysctl.text(library, "hw.model") is None
    assert len(library.calls) == fails + 1


def test_a_text_is_read_without_the_zero_that_ends_it() -> None:
    assert sysctl.text(FakeLibrary({"hw.model": "Mac16,1"}), "hw.model") == "Mac16,1"


def test_what_nobody_foresaw_means_no_device_and_leaves_its_reason_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> Any:
        raise RuntimeError("no library today")

    with caplog.at_level(logging.DEBUG, logger="portakernel"):
        assert find(library=broken, machine="arm64", macos="26.1", build=mac_build) == []
    assert "RuntimeError: no library today" in caplog.text


def test_probing_this_machine_imports_neither_torch_nor_metal() -> None:
    code = """
import sys
from portakernel_backends.apple import portakernel_targets
from portakernel_backends.apple.probe import find
assert portakernel_targets() == find()
loaded = {name.partition('.')[0] for name in sys.modules}
assert not loaded & {'torch', 'triton', 'Metal', 'mlx'}, loaded
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
