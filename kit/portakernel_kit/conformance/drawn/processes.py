"""Jobs side by side in processes of their own: a kernel that ends its process costs that request alone."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from portakernel_kit.conformance.drawn.trying import Begun, Event, Job
from portakernel_kit.conformance.observing.isolation import Death, run_apart
from portakernel_kit.conformance.observing.observation import Finished

# A kernel may have to be compiled before its first call; what takes longer hangs.
_PATIENCE_S = 120.0


def run_all(job: Job, workers: int) -> Iterator[Event | Death | tuple[Begun, Death] | BaseException]:
    """The events of the job's requests, dealt out to ``workers`` processes, as they come.

    Where one dies, that and what it had begun, and another goes on behind it.
    """
    found: queue.Queue[Event | tuple[Begun, Death] | Death | BaseException | None] = queue.Queue()
    deadline = time.monotonic() + job.seconds

    def follow(own: Job) -> None:
        try:
            for event in _restarted(own, deadline):
                found.put(event)
        except BaseException as error:  # noqa: BLE001 - raised again where it is read
            found.put(error)
        finally:
            found.put(None)

    jobs = [replace(job, first=job.first + place, step=workers) for place in range(workers)]
    threads = [threading.Thread(target=follow, args=(own,), daemon=True) for own in jobs]
    for thread in threads:
        thread.start()
    left = len(threads)
    while left:
        event = found.get()
        if isinstance(event, BaseException):
            raise event
        if event is None:
            left -= 1
        else:
            yield event


def _restarted(job: Job, deadline: float) -> Iterator[Event | Death | tuple[Begun, Death]]:
    """The events of one process after the other, until there is nothing left to do."""
    while (left := deadline - time.monotonic()) > 0 and job.first < job.end:
        begun: Begun | None = None
        for event in run_apart(replace(job, seconds=left), _PATIENCE_S):
            if isinstance(event, Begun):
                begun = event
            if isinstance(event, Finished) and not event.lost:
                return
            if isinstance(event, Death):
                yield event if begun is None else (begun, event)
                if begun is None:
                    return  # it could not even start
            elif not isinstance(event, Finished):
                yield event
        if begun is not None:
            job = replace(job, first=begun.number + job.step)
