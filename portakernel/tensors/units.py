"""How many multiprocessors or compute units a device has: two cards of one architecture differ in what is fastest.

Of a CPU they are the processors that an op can use at once, of which the process says more than the hardware: as many
as torch has threads, and no more than the process may run on (its affinity). It may change while a process runs.
"""

from __future__ import annotations

import functools
import os

from portakernel.words.target import Device


def units_of(device: Device) -> int | None:
    """The device's multiprocessors, compute units or, of a CPU, the processors that an op can use at once now.

    None where torch does not say. A GPU's context is made to ask it, if there is none yet.
    """
    return units_of_cpu() if device.torch_device == "cpu" else _of_accelerator(device)


def units_of_cpu() -> int:
    """The processors that an op can use at once now: torch's threads, where the process may run on so many."""
    import torch  # deciding for absent hardware needs none

    may_run_on = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(torch.get_num_threads(), may_run_on or 1)


@functools.cache
def _of_accelerator(device: Device) -> int | None:
    import torch

    name = device.torch_device or ""
    if name.startswith("cuda"):
        return int(torch.cuda.get_device_properties(name).multi_processor_count)
    if name.startswith("xpu"):
        return int(torch.xpu.get_device_properties(name).max_compute_units)
    return None
