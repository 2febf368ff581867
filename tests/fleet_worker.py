"""Workers on the clock of ``tuning_worker``, some of which end: each once, or whenever they are asked."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

from tuning_worker import PLAIN, FakeWorker

from portakernel.tuning.record import Record
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.measuring import At

# The size whose call ends a worker, and the folder where it is noted that it did.
DEADLY, FOLDER = 7, "FLEET_FOLDER"


class Mortal(FakeWorker):
    """Ends itself, or the process that started its own, at one call: the first time that anybody measures it."""

    kills_parent = False
    for_ever = False

    def measure(self, job: Job, at: At) -> Record:
        if job.shapes["x"][0] == DEADLY and (self.for_ever or self._first()):
            if self.kills_parent:
                os.kill(os.getppid(), signal.SIGKILL)
            os._exit(3)
        return super().measure(job, at)

    @staticmethod
    def _first() -> bool:
        try:
            (Path(os.environ[FOLDER]) / "ended").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class KillsItsActor(Mortal):
    """Ends the process that started its own."""

    kills_parent = True


class EndsForEver(Mortal):
    """Ends itself whenever it measures that call."""

    for_ever = True


class Foreign(FakeWorker):
    """Has another source of a kernel."""

    def facts(self) -> Facts:
        facts = super().facts()
        return replace(facts, sources={**facts.sources, "acme.fast": "another"})


def mortal(torch_device: str) -> FakeWorker:
    return Mortal(PLAIN)


def kills_its_actor(torch_device: str) -> FakeWorker:
    return KillsItsActor(PLAIN)


def ends_for_ever(torch_device: str) -> FakeWorker:
    return EndsForEver(PLAIN)


def foreign(torch_device: str) -> FakeWorker:
    return Foreign(PLAIN)
