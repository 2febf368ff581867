"""Jobs compiled in processes of their own, side by side: a compiler may abort, and takes its process with it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context

from portakernel.dispatch import Dispatcher
from portakernel.kernel import Kernel
from portakernel.offline.compiled import Compiled
from portakernel.offline.jobs import Job, call_on_meta
from portakernel.offline.outcome import Outcome
from portakernel.target import Target

# The end of what a compiler wrote is where its diagnosis stands.
_MOST_DIAGNOSIS = 4000


def compile_all(jobs: Sequence[Job], workers: int | None = None) -> Iterator[Outcome]:
    """Each job's outcome, as they come."""
    waiting = list(jobs)
    alone: set[Job] = set()
    while waiting:
        waiting = yield from _round(waiting, alone, workers)


def _round(jobs: Sequence[Job], alone: set[Job], workers: int | None) -> Generator[Outcome, None, list[Job]]:
    """Compiles side by side; where a process died, what it held runs again, one at a time, to tell which it was."""
    suspects = [job for job in jobs if job in alone]
    batch = suspects[:1] or list(jobs)
    count = 1 if suspects else min(workers or os.cpu_count() or 1, len(batch))
    again: list[Job] = [job for job in jobs if job not in batch]
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        futures: dict[Future[Outcome], Job] = {pool.submit(compile_job, job): job for job in batch}
        for future in as_completed(futures):
            job = futures[future]
            try:
                outcome = future.result()
            except BrokenProcessPool:
                if count == 1 and len(batch) == 1:
                    yield Outcome(job.kernel, job.target, str(job), error="the compiler ended its process")
                else:
                    alone.add(job)
                    again.append(job)
                continue
            yield outcome
    return again


def compile_job(job: Job) -> Outcome:
    """Compiles one job in this process."""
    from portakernel.runtime import dispatcher

    now = dispatcher()
    kernel = next(kernel for kernel in now.registry.named(job.kernel) if kernel.name == job.kernel)
    evidence = kernel.evidence.get(Target.parse(job.target).vendor, "")
    begin = time.perf_counter()
    compiling = offline_context(now, kernel)
    told: list[str] = []
    try:
        with _diagnosis(told), compiling(Target.parse(job.target)) as found:
            call_on_meta(now, kernel, job)
    except Exception as error:  # noqa: BLE001 - the plugin border: whatever a compiler raises is the outcome
        text = "\n".join(filter(None, [f"{type(error).__name__}: {error}".strip(), *told]))
        return Outcome(job.kernel, job.target, str(job), error=text, seconds=time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    return Outcome(job.kernel, job.target, str(job), tuple(found), evidence, seconds=seconds)


def offline_context(dispatcher: Dispatcher, kernel: Kernel) -> Callable[..., AbstractContextManager[list[Compiled]]]:
    """The plugin's context for compiling for a target."""
    entry = dispatcher.registry.offline(kernel.plugin)
    if entry is None:
        raise LookupError(f"{kernel.plugin} does not compile for targets that are not here")
    context: Callable[..., AbstractContextManager[list[Compiled]]] = dispatcher.entry(entry)
    return context


@contextmanager
def _diagnosis(told: list[str]) -> Iterator[None]:
    """Takes what is written to the process's stderr, below Python too: compilers tell their reasons there."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            told.append(file.read().decode(errors="replace").strip()[-_MOST_DIAGNOSIS:])
