"""How many multiprocessors or compute units a device has: two cards of one architecture differ in what is fastest."""

from __future__ import annotations

import functools
import os

from portakernel.words.target import Device


@functools.cache
def units_of(device: Device) -> int | None:
    """The device's multiprocessors, compute units or, of a CPU, the processors that this process may use.

    None where torch does not say. A GPU's context is made to ask it, if there is none yet.
    """
    import torch  # deciding for absent hardware needs none

    name = device.torch_device or ""
    if name == "cpu":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if name.startswith("cuda"):
        return int(torch.cuda.get_device_properties(name).multi_processor_count)
    if name.startswith("xpu"):
        return int(torch.xpu.get_device_properties(name).max_compute_units)
    return None
