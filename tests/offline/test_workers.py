"""Jobs are compiled in processes that may die, be interrupted, and know nothing of the program that started them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

from portakernel.offline import workers
from portakernel.offline.job import Job
from portakernel.offline.workers import compile_all, compile_job
from portakernel.runtime import dispatcher
from portakernel.words.target import Target
from portakernel_kit.conformance.offline_jobs import jobs

# What each worker runs first: the plugin's context is another for one target.
STAND_IN = """\
import os
import portakernel.offline.workers as workers
real = workers.offline_context
def context(now, kernel):
    made = real(now, kernel)
    def compiling(target):
        if target.arch != "sm_89":
            return made(target)
        os.write(2, b"ptxas: line 7: unknown instruction\\n")
        {body}
    return compiling
workers.offline_context = context
"""


def add_for(arch: str) -> Job:
    (job,) = jobs(dispatcher(), dispatcher().registry.kernels["triton.add"], Target("nvidia", arch))
    return job


@pytest.fixture
def stand_in(forked_workers, monkeypatch):
    """Makes workers run ``body`` in the place of the compiler for sm_89."""

    def use(body: str) -> None:
        monkeypatch.setattr(workers, "_WORKER", STAND_IN.format(body=body) + workers._WORKER)

    return use


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise RuntimeError('PassManager::run failed')", "RuntimeError: PassManager::run failed"),
        ("os.abort()", "the compiler ended its process (SIGABRT)"),
        ("os._exit(9)", "the compiler ended its process (status 9)"),
    ],
)
def test_a_failure_is_told_with_the_compilers_diagnosis_and_the_others_go_on(stand_in, body, error):
    stand_in(body)
    asked = [add_for("sm_89"), add_for("sm_90")]
    outcomes = {outcome.target: outcome for outcome in compile_all(asked, workers=1)}
    assert outcomes["nvidia:sm_89"].error == f"{error}\nptxas: line 7: unknown instruction"
    assert outcomes["nvidia:sm_89"].call == str(asked[0])
    assert outcomes["nvidia:sm_90"].verdict == "native", outcomes["nvidia:sm_90"].error
    assert len(outcomes["nvidia:sm_90"].functions) == 1


def test_a_compiler_that_does_not_end_is_given_up(stand_in, monkeypatch):
    stand_in("import time; time.sleep(600)")
    outcomes = compile_all([add_for("sm_90"), add_for("sm_89")], workers=1)
    assert next(outcomes).error == ""
    monkeypatch.setattr(workers, "PATIENCE_S", 1.0)
    (outcome,) = outcomes
    assert outcome.error == "the compiler did not end in 1 seconds\nptxas: line 7: unknown instruction"


@pytest.mark.parametrize(("ranks", "processes"), [("", 8), ("3", 2), ("16", 1), ("0", 8), ("two", 8)])
def test_the_ranks_of_a_host_share_its_cores(monkeypatch, ranks, processes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert workers.cores() == processes


def test_what_a_worker_compiles_is_what_this_process_compiles(forked_workers):
    job = add_for("sm_80")
    (outcome,) = compile_all([job])
    here = compile_job(job)
    assert [f.key for f in outcome.functions] == [f.key for f in here.functions]
    assert outcome.functions[0].assembly == here.functions[0].assembly


def test_a_script_that_compiles_as_it_is_read_is_read_once(tmp_path):
    """``multiprocessing`` would run it again in each process that it starts."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('read', flush=True)\n"
        "from portakernel_kit.conformance.offline_jobs import jobs\n"
        "from portakernel.offline.workers import compile_all\n"
        "from portakernel.runtime import dispatcher\n"
        "from portakernel.words.target import Target\n"
        "kernel = dispatcher().registry.kernels['triton.add']\n"
        "(job,) = jobs(dispatcher(), kernel, Target('nvidia', 'sm_90'))\n"
        "print([outcome.verdict for outcome in compile_all([job])])\n",
        encoding="utf-8",
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["read", "['native']"]


@pytest.mark.parametrize("how", ["given up", "interrupted"])
def test_no_process_is_left_when_the_iteration_ends_early(forked_workers, monkeypatch, how):
    started = []

    class Counted(workers._Worker):
        def __init__(self) -> None:
            super().__init__()
            started.append(self._process)

    monkeypatch.setattr(workers, "_Worker", Counted)
    if how == "interrupted":
        real = workers.wait

        def interrupt(*arguments):
            real(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(workers, "wait", interrupt)
    outcomes = compile_all([add_for(arch) for arch in ("sm_80", "sm_89", "sm_90")], workers=2)
    if how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            next(outcomes)
    else:
        next(outcomes)
        outcomes.close()
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)
