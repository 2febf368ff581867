"""A torch device of a new vendor is the registry's, by index; what no backend found is described from torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from portakernel.calling.devices import find_device
from portakernel.words.target import Device, Target

ARC = Device(Target("intel", "bmg"), "Intel Arc B580", "xpu:0")
ARC_1 = Device(Target("intel", "dg2"), "Intel Arc A770", "xpu:1")
UNREACHABLE = Device(Target("intel", "mtl"), "Intel Arc Graphics", None)
M3 = Device(Target("apple", "m3"), "Apple M3 Max", "mps:0")


def registry(*devices: Device) -> Any:
    """A registry with these devices, each on the torch device of its vendor."""
    kinds = {"intel": "xpu", "apple": "mps"}
    return SimpleNamespace(devices_on=lambda kind: [d for d in devices if kinds[d.target.vendor] == kind])


@pytest.mark.parametrize(
    ("device", "expected"),
    [("xpu", ARC), ("xpu:0", ARC), ("xpu:1", ARC_1), ("mps", M3), ("mps:0", M3)],
)
def test_a_torch_device_is_found_by_its_index(device: str, expected: Device) -> None:
    assert find_device(registry(UNREACHABLE, ARC, ARC_1, M3), torch.device(device)) == expected


@pytest.mark.parametrize(
    ("device", "target", "name"),
    [
        ("xpu", Target("intel", "unknown"), "xpu:0"),
        ("xpu:1", Target("intel", "unknown"), "xpu:1"),
        ("mps", Target("apple", "unknown"), "mps:0"),
        ("cpu", Target("cpu", "unknown"), "cpu"),
        ("meta", Target("meta", "unknown"), "meta"),
    ],
)
def test_a_device_that_no_backend_found_belongs_to_its_types_vendor(device: str, target: Target, name: str) -> None:
    assert find_device(registry(UNREACHABLE), torch.device(device)) == Device(target, name, name)
