"""Workers on the devices of a Ray cluster: an actor for each, which measures in a process that it starts.

Needs ``pip install 'portakernel[ray]'``, the same packages on every node, and a cluster that is reached by ``address``;
without one Ray starts a cluster of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.errors import ArgumentValueError, PortakernelError
from portakernel.tuning.record import Record
from portakernel_kit.tune.child import REAL, Child, JobError, WorkerLostError
from portakernel_kit.tune.fleet import Outcome
from portakernel_kit.tune.job import Facts, Job

_EXTRA = "the engine ray needs Ray, which is not installed: pip install 'portakernel[ray]'"


class DeviceActor:
    """What runs on a device; both ways JSON-ready data alone."""

    def __init__(self, torch_device: str, make: str) -> None:
        self._child = Child(torch_device, make=make)

    def facts(self) -> dict[str, Any]:
        """What the device is, or why it cannot measure."""
        try:
            return {"facts": self._child.facts().to_json()}
        except PortakernelError as error:
            return {"error": str(error)}

    def measure(self, job: Mapping[str, Any]) -> dict[str, str]:
        """The record of a job as its line, or why there is none."""
        try:
            return {"record": self._child.measure(Job.from_json(job)).line()}
        except JobError as error:
            return {"error": str(error)}
        except WorkerLostError as error:
            return {"lost": str(error)}


class RayWorkers:
    """An actor for each GPU of the cluster, or for each unit of a ``resource`` that its nodes were given.

    An actor that dies is started again once.

    Raises:
        ArgumentValueError: Ray is not installed, or the cluster has no such device.
    """

    def __init__(
        self, address: str | None = None, *, resource: str = "", torch_device: str = "cuda:0", make: str = REAL
    ) -> None:
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ArgumentValueError(_EXTRA) from error
        made: Any = ray  # whose functions are not typed
        self._ray = made
        if not made.is_initialized():
            made.init(address=address, log_to_driver=False)
        count = int(made.cluster_resources().get(resource or "GPU", 0))
        if not count:
            text = f"the Ray cluster has no {resource or 'GPU'}; start its nodes with some"
            named = "RAY_ADDRESS names another, and without it Ray starts one of this machine"
            raise ArgumentValueError(f"{text} ({named})")
        wanted: dict[str, Any] = {"resources": {resource: 1}, "num_cpus": 0} if resource else {"num_gpus": 1}
        actor: Any = ray.remote(DeviceActor)
        options = actor.options(max_restarts=1, max_task_retries=0, **wanted)
        self.actors: dict[str, Any] = {f"ray:{i}": options.remote(torch_device, make) for i in range(count)}
        self._pending: dict[Any, str] = {}

    def facts(self) -> Mapping[str, Facts | str]:
        """By actor what its worker says of itself, or why it cannot measure."""
        asked = {device: actor.facts.remote() for device, actor in self.actors.items()}
        found: dict[str, Facts | str] = {}
        for device, reference in asked.items():
            answer: Mapping[str, Any]
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                answer = {"error": _first_line(error)}
            found[device] = Facts.from_json(answer["facts"]) if "facts" in answer else answer["error"]
        return found

    def submit(self, device: str, job: Job) -> None:
        """Gives a job to a device that has none."""
        self._pending[self.actors[device].measure.remote(job.to_json())] = device

    def next(self) -> Outcome:
        """Waits for the next outcome."""
        (ready, *_), _ = self._ray.wait(list(self._pending), num_returns=1)
        device = self._pending.pop(ready)
        try:
            answer: Mapping[str, str] = self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            return Outcome(device, lost=_first_line(error))
        if "record" in answer:
            return Outcome(device, Record.parse(answer["record"]))
        return Outcome(device, JobError(answer["error"])) if "error" in answer else Outcome(device, lost=answer["lost"])

    def close(self) -> None:
        """Ends the actors; the cluster stays, where it was there before."""
        for actor in self.actors.values():
            self._ray.kill(actor)
        self._pending.clear()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
