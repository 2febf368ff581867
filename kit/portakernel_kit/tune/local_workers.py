"""Workers on this machine's devices: for each a process of its own, which sees that device alone."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

from portakernel.errors import PortakernelError
from portakernel.words.target import Device
from portakernel_kit.tune.child import PATIENCE_S, REAL, Child, JobError, WorkerLostError
from portakernel_kit.tune.fleet import Outcome
from portakernel_kit.tune.job import Facts, Job


def seen_alone(device: Device) -> tuple[str, Mapping[str, str]]:
    """Torch's name for a device in a process that sees it alone, and the variables that have a process see it alone.

    By the device's identity, which outlives other masks and orders. Where a vendor's runtime knows devices by numbers
    only (Intel's), or a device has no identity, the process sees what this one does.
    """
    name = device.torch_device or "cpu"
    first = f"{name.partition(':')[0]}:0"
    match device.target.vendor:
        case "nvidia" if device.uuid:
            return first, {"CUDA_VISIBLE_DEVICES": device.uuid}
        case "amd" if device.uuid:
            # HIP's mask is applied to what ROCr's has left
            return first, {"ROCR_VISIBLE_DEVICES": device.uuid, "HIP_VISIBLE_DEVICES": "0"}
        case _:
            return name, {}


class LocalWorkers:
    """A process for each device, and a thread that waits for it. ``make`` is as for ``Child``."""

    def __init__(self, devices: Sequence[Device], *, make: str = REAL, patience_s: float = PATIENCE_S) -> None:
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._children: dict[str, _Child] = {}
        for device in devices:
            torch_device, environment = seen_alone(device)
            child = _Child(torch_device, environment=environment, make=make, patience_s=patience_s)
            self._children[device.torch_device or "cpu"] = child

    def facts(self) -> Mapping[str, Facts | str]:
        """By torch's name for each device what its worker says of itself, or why it cannot measure."""
        found: dict[str, Facts | str] = {}
        for device, child in self._children.items():
            try:
                found[device] = child.facts()
            except PortakernelError as error:
                found[device] = str(error)
        return found

    def submit(self, device: str, job: Job) -> None:
        """Gives a job to a device that has none."""
        threading.Thread(target=self._measure, args=(device, job), name=f"tune {device}", daemon=True).start()

    def next(self) -> Outcome:
        """Waits for the next outcome."""
        return self._outcomes.get()

    def close(self) -> None:
        """Ends the processes."""
        for child in self._children.values():
            child.given_up = True
            child.close()

    def _measure(self, device: str, job: Job) -> None:
        child = self._children[device]
        try:
            outcome = Outcome(device, child.measure(job))
        except JobError as error:
            outcome = Outcome(device, error)
        except WorkerLostError as error:
            outcome = Outcome(device, lost=str(error))
        except Exception as error:  # noqa: BLE001 - whoever waits for it shall not wait for ever
            outcome = Outcome(device, lost=f"{type(error).__name__}: {error}")
        self._outcomes.put(outcome)


class _Child(Child):
    """A child that is not started again once it was given up, though a job may still be at work."""

    given_up = False

    def _start(self) -> None:
        if self.given_up:
            raise WorkerLostError("its device was given up")
        super()._start()
