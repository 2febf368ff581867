"""A worker in a process of its own: where a kernel ends it, or never returns, that is a verdict, and work goes on.

Both sides send JSON texts: jobs one way; what is at work, and records, the other.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from portakernel.errors import PortakernelError
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.measuring import At, DeviceLostError

REAL = "portakernel_kit.tune.worker:make_worker"
# How long a kernel may be at work: to be compiled, or to run through one round. Inductor's take half a minute.
PATIENCE_S = 300.0
# What would have policies, plans or earlier measurements choose: the default is what priorities pick.
_LEFT_OUT = ("USE", "PREFER", "REQUIRE", "POLICY", "PLAN", "COMPILED")
_ENDING_S = 5.0
_GIVEN_UP = "the process that measures was given up while it was at work"


class Worker(Protocol):
    """Measures on one device, in this process."""

    def facts(self) -> Facts:
        """What device and software it has."""
        ...

    def measure(self, job: Job, at: At) -> Record:
        """Measures a call; ``at`` is told each kernel before it is touched.

        Raises:
            PortakernelError: the job does not fit its op, or cannot be measured here.
            DeviceLostError: a kernel has broken the device.
        """
        ...


class WorkerLostError(PortakernelError):
    """The process of a worker ended without a kernel at work: it cannot measure here."""


class JobError(PortakernelError):
    """A worker refused a job; the process is as it was."""


class Child:
    """The parent's end of a worker's process, which is started on first use."""

    def __init__(
        self,
        torch_device: str = "cpu",
        *,
        environment: Mapping[str, str] | None = None,
        make: str = REAL,
        patience_s: float = PATIENCE_S,
        advance: At = lambda _: None,
    ) -> None:
        self._torch_device, self._make, self._patience_s, self._advance = torch_device, make, patience_s, advance
        self._environment = dict(environment or {})
        self._process: BaseProcess | None = None
        self._ours: Connection | None = None

    def facts(self) -> Facts:
        """What the worker says of itself.

        Raises:
            WorkerLostError: its process ended.
        """
        self._send({"facts": True})
        while True:
            told, _ = self._receive()
            if told is None:
                raise self._lost()
            if "facts" in told:
                return Facts.from_json(told["facts"])

    def measure(self, job: Job) -> Record:
        """The record of a job, in which kernels that ended the process, or were ended with it, are crashed and hung.

        Raises:
            WorkerLostError: the process ended without a kernel at work.
            JobError: it cannot be measured.
        """
        known = dict(job.known)
        while True:
            self._send({"job": replace(job, known=known).to_json()})
            found, at = self._followed()
            if isinstance(found, Record):
                return found
            if at is None or at[0] in known:
                raise self._lost()
            name, source = at
            known[name] = Entry(source=source, verdict=found[0], detail=found[1]).model_dump(mode="json")

    def close(self) -> None:
        """Ends the process."""
        # taken first: an interrupt may close it again while this waits
        process, ours = self._process, self._ours
        self._process = self._ours = None
        if process is None or ours is None:
            return
        with suppress(OSError):
            ours.close()
        process.join(0.2)
        if process.is_alive():
            process.kill()
        process.join()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- talking ----------------------------------------------------------------------------------------------------

    def _followed(self) -> tuple[Record | tuple[Verdict, str], tuple[str, str] | None]:
        """The record, or how the process ended; and what was at work then, with its source."""
        at: tuple[str, str] | None = None
        while True:
            told, reason = self._receive()
            match told:
                case None:
                    return reason, at
                case {"at": [name, source]}:
                    at = name, source
                    self._advance(name)
                case {"lost": [name, source, text]}:
                    self._end()
                    return (Verdict.CRASHED, f"the device answers no more: {text}"), (name, source)
                case {"record": line}:
                    return Record.parse(line), at
                case {"error": text}:
                    if told.get("ended"):
                        self._end()
                    raise JobError(text)
                case _:
                    continue

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._ours is not None
        try:
            self._ours.send(json.dumps(message))
        except OSError:  # it ended meanwhile
            self._start()
            self._ours.send(json.dumps(message))

    def _receive(self) -> tuple[dict[str, Any] | None, tuple[Verdict, str]]:
        """The next message; None, and how the process ended, where there is none."""
        ours, process = self._ours, self._process
        if ours is None or process is None:
            raise WorkerLostError(_GIVEN_UP)
        try:
            if not ours.poll(self._patience_s):
                self._end()
                return None, (Verdict.HUNG, f"it did not return within {self._patience_s:g} s")
            message: dict[str, Any] = json.loads(ours.recv())
        except (EOFError, OSError) as error:
            if self._process is not process:  # another thread has closed it
                raise WorkerLostError(_GIVEN_UP) from error
            process.join(_ENDING_S)
            status = process.exitcode
            self._end()
            return None, (Verdict.CRASHED, f"its process ended with {_status(status)}")
        return message, (Verdict.CRASHED, "")

    def _start(self) -> None:
        self._end()
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        arguments = (theirs, self._make, self._torch_device, self._environment)
        # a worker may start processes itself, as compilers do
        self._process = context.Process(target=_serve, args=arguments, daemon=False)
        self._process.start()
        theirs.close()

    def _end(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()
        self.close()

    def _lost(self) -> WorkerLostError:
        self._end()
        text = f"the process that measures on {self._torch_device} ended, and no kernel was at work"
        return WorkerLostError(f"{text}; its own messages stand above")


def _status(code: int | None) -> str:
    if code is None:
        return "no status"
    return f"status {code}" if code >= 0 else f"{signal.Signals(-code).name}"


def _serve(parent: Connection, make: str, torch_device: str, environment: Mapping[str, str]) -> None:
    """The child's side: answers one message after the other, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's: it ends this process
    for name in _LEFT_OUT:
        os.environ.pop(f"PORTAKERNEL_{name}", None)
    os.environ |= {"PORTAKERNEL_TUNING": "off", **environment}
    module, _, function = make.partition(":")
    worker: Worker = getattr(importlib.import_module(module), function)(torch_device)
    sources = worker.facts().sources

    def say(**message: Any) -> None:
        try:
            parent.send(json.dumps(message))
        except OSError:  # the parent is gone, or has given this process up: nobody waits for what it does
            os._exit(1)

    def at(name: str) -> None:
        say(at=[name, sources.get(name, "")])

    while True:
        try:
            asked = json.loads(parent.recv())
        except (EOFError, OSError):
            return
        try:
            _answer(worker, asked, say, at)
        except DeviceLostError as error:
            say(lost=[error.kernel, sources.get(error.kernel, ""), error.reason])
            return
        except PortakernelError as error:
            say(error=f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - torch's own: no memory left, or a device that broke between kernels
            first = str(error).strip().partition("\n")[0]
            say(error=f"{type(error).__name__}: {first}", ended=True)
            return


def _answer(worker: Worker, asked: Mapping[str, Any], say: Callable[..., None], at: At) -> None:
    if "facts" in asked:
        say(facts=worker.facts().to_json())
    else:
        say(record=worker.measure(Job.from_json(asked["job"]), at).line())
