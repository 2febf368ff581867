"""Whether other processes are at work on a device, as far as its driver says."""

from __future__ import annotations

import shutil
import subprocess

from portakernel.words.target import Device

_PATIENCE_S = 10.0


def others_at_work(device: Device) -> bool:
    """Whether another process computes on the device; False too where nobody can say.

    One is this process, whose number may be another one outside of its container.
    """
    command = shutil.which("nvidia-smi")
    if device.target.vendor != "nvidia" or command is None or not device.uuid:
        return False
    query = [command, "--query-compute-apps=pid", "--format=csv,noheader", "-i", device.uuid]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return len({line.strip() for line in done.stdout.splitlines() if line.strip().isdecimal()}) > 1
