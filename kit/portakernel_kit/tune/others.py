"""Whether other processes are at work on a device, as far as its driver says."""

from __future__ import annotations

import os
import shutil
import subprocess

from portakernel.words.target import Device

_PATIENCE_S = 10.0


def others_at_work(device: Device) -> bool:
    """Whether another process computes on the device; False too where nobody can say.

    Two may be this process and the one that started it. Outside of a container their numbers may be others: then it is
    told by how many there are.
    """
    command = shutil.which("nvidia-smi")
    if device.target.vendor != "nvidia" or command is None or not device.uuid:
        return False
    query = [command, "--query-compute-apps=pid", "--format=csv,noheader", "-i", device.uuid]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    found = {int(line) for line in done.stdout.splitlines() if line.strip().isdecimal()}
    ours = {os.getpid(), os.getppid()}
    return bool(found - ours) if os.getpid() in found else len(found) > len(ours)
