"""Compilers under faults: whoever asked for them is killed, they hang, start others, fork, or leave things behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc")

# A compiler that starts another one, which does not end; both write their numbers down.
_SLOW = 'echo $$ >> "{pids}"; (echo $(exec sh -c \'echo $PPID\') >> "{pids}"; exec sleep 600) & sleep 600'


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _until(true, seconds=20.0) -> bool:
    """Whether something comes true in time; looked at, not slept over, for there is nothing to wait on."""
    end = time.perf_counter() + seconds
    while not (found := true()) and time.perf_counter() < end:
        os.sched_yield()
    return bool(found)


def _pids(file: Path, count: int) -> list[int]:
    def written() -> list[int]:
        return [int(line) for line in file.read_text(encoding="utf-8").split()] if file.exists() else []

    assert _until(lambda: len(written()) >= count)
    return written()


def _killed(start, file: Path, count: int) -> list[bool]:
    """A process that starts something is killed; which of what it had started are gone then."""
    child = os.fork()
    if child == 0:
        try:
            start()
        finally:
            os._exit(1)
    pids = _pids(file, count)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return [_until(lambda pid=pid: not _alive(pid)) for pid in pids]


def _parent_of_a_compiler_killed():
    from portakernel.authoring.native import Limits
    from portakernel.native.process import run

    file = Path("pids").absolute()
    command = ["/bin/sh", "-c", _SLOW.format(pids=file)]
    return _killed(lambda: run(command, Limits(), folder=Path.cwd()), file, 2)


def test_a_compiler_and_what_it_started_end_with_a_killed_parent(fault):
    assert fault(_parent_of_a_compiler_killed).returned == [True, True]


def _parent_with_forked_children_killed():
    """The killed parent had forked a worker meanwhile, as data loaders do, which lives on."""
    from portakernel.authoring.native import Limits
    from portakernel.native.process import run

    file, workers = Path("pids").absolute(), Path("workers").absolute()
    command = ["/bin/sh", "-c", _SLOW.format(pids=file)]

    def start() -> None:
        import threading

        compiling = threading.Thread(target=run, args=(command, Limits()), kwargs={"folder": Path.cwd()})
        compiling.start()
        _pids(file, 2)
        worker = os.fork()
        if worker == 0:
            workers.write_text(str(os.getpid()), encoding="utf-8")
            signal.pause()
        _pids(workers, 1)
        file.write_text(file.read_text(encoding="utf-8") + f"{worker}\n", encoding="utf-8")
        signal.pause()

    child = os.fork()
    if child == 0:
        try:
            start()
        finally:
            os._exit(1)
    *compilers, worker = _pids(file, 3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    gone = [_until(lambda pid=pid: not _alive(pid)) for pid in compilers]
    lives = _alive(worker)
    os.kill(worker, signal.SIGKILL)
    return [gone, lives]


def test_a_compiler_ends_with_its_killed_parent_though_that_had_forked(fault):
    assert fault(_parent_with_forked_children_killed).returned == [[True, True], True]


def _timed_out():
    from portakernel.authoring.native import Limits
    from portakernel.native.process import run

    file = Path("pids").absolute()
    ran = run(["/bin/sh", "-c", _SLOW.format(pids=file)], Limits(seconds=1.0), folder=Path.cwd())
    return [ran.timed_out, [_until(lambda pid=pid: not _alive(pid)) for pid in _pids(file, 2)]]


def test_a_timeout_ends_what_the_compiler_started_too(fault):
    assert fault(_timed_out).returned == [True, [True, True]]


def _left_behind():
    """A compiler ends, and leaves a process that keeps its output open."""
    from portakernel.authoring.native import Limits
    from portakernel.native.process import run

    file = Path("pids").absolute()
    script = f'(exec sleep 600) & echo $! > "{file}"; echo done'
    begin = time.perf_counter()
    ran = run(["/bin/sh", "-c", script], Limits(), folder=Path.cwd())
    return [ran.told, ran.status, time.perf_counter() - begin < 30, _until(lambda: not _alive(_pids(file, 1)[0]))]


def test_what_a_compiler_leaves_running_is_ended_with_it(fault):
    assert fault(_left_behind).returned == ["done\n", 0, True, True]


def _nothing_is_left():
    """Children of this process and its descriptors, after some runs."""
    from portakernel.authoring.native import Limits
    from portakernel.native.process import run

    def state() -> list[int]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
        return [len(children), len(os.listdir("/proc/self/fd"))]

    run(["true"], Limits(), folder=Path.cwd())
    before = state()
    for _ in range(10):
        run(["true"], Limits(), folder=Path.cwd())
    for _ in range(3):
        try:
            run(["true"], Limits(), folder=Path("/nowhere"))
        except OSError:
            continue
        return "a folder that is not there was entered"
    return [before, state()]


def test_runs_leave_neither_processes_nor_descriptors(fault):
    before, after = fault(_nothing_is_left).returned
    assert after == before


def _forks_while_compiling():
    """A forked child ends, or ends the group that it knows of: the compiler is its parent's."""
    from portakernel.host.process_group import ProcessGroup

    with ProcessGroup() as group, tempfile.TemporaryFile() as told:
        process = group.start(["sleep", "600"], stdin=subprocess.DEVNULL, told=told)
        child = os.fork()
        if child == 0:
            group.end()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        return [status, process.poll() is None]


def test_a_forked_child_does_not_end_its_parents_compiler(fault):
    assert fault(_forks_while_compiling).returned == [0, True]


def _worker_of_a_killed_parent():
    """A process that compiles ahead, which its parent's death finds busy."""
    from portakernel.offline import workers

    file = Path("pids").absolute()
    workers._WORKER = (
        f"import os, subprocess, time; inner = subprocess.Popen(['sleep', '600']);"
        f" open({str(file)!r}, 'w').write(f'{{os.getpid()}} {{inner.pid}}'); time.sleep(600)"
    )

    def start() -> None:
        kept = workers._Worker()
        signal.pause()
        kept.end()

    return _killed(start, file, 2)


def test_a_worker_that_compiles_ahead_ends_with_its_killed_parent(fault):
    assert fault(_worker_of_a_killed_parent).returned == [True, True]


_OBSERVED = """
import os, signal, subprocess, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from hanging import Hanging
from portakernel_kit.conformance.observing.isolation import run_apart
if __name__ == "__main__":
    print(list(run_apart(Hanging({file!r}), 600.0)))
"""
_HANGING = """
import ctypes, os, subprocess
class Hanging:
    def __init__(self, file):
        self.file = file
    def events(self):
        inner = subprocess.Popen(["sleep", "600"])
        with open(self.file + ".new", "w") as file:
            file.write(f"{os.getpid()} {inner.pid}")
        os.rename(self.file + ".new", self.file)
        ctypes.PyDLL(None).sleep(600)  # and nothing else of Python runs meanwhile
        yield None
"""


def test_a_kernel_that_hangs_ends_with_the_killed_program_that_observes_it(tmp_path):
    (tmp_path / "hanging.py").write_text(_HANGING, encoding="utf-8")
    file = tmp_path / "pids"
    program = tmp_path / "program.py"
    program.write_text(_OBSERVED.format(folder=str(tmp_path), file=str(file)), encoding="utf-8")
    observing = subprocess.Popen([sys.executable, program], cwd=tmp_path)
    try:
        assert _until(file.exists, 120)
        pids = _pids(file, 2)
    finally:
        observing.kill()
        observing.wait(60)
    assert [_until(lambda pid=pid: not _alive(pid)) for pid in pids] == [True, True]


def _build_of_a_killed_parent():
    """A build is killed while its compiler runs; the next one takes its temporary folder away, and not a live one's."""
    from portakernel.authoring.native import Limits, Options, Source, build
    from portakernel.words.target import Target

    tempfile.tempdir = str(Path("temporary").absolute())
    for name in ("temporary", "bin", "plugin"):
        Path(name).mkdir()
    Path("plugin/scale.cu").write_text('extern "C" __global__ void scale(float* y) {}\n', encoding="utf-8")
    nvcc, file = Path("bin/nvcc").absolute(), Path("pids").absolute()
    version = '[ "$1" = --version ] && echo "release 13.0, V13.0.88" && exit 0\n'

    def compiler(then: str) -> None:
        nvcc.write_text(f"#!/bin/sh\n{version}{then}\n", encoding="utf-8")
        nvcc.chmod(0o755)

    os.environ["PATH"] = f"{nvcc.parent}:/usr/bin:/bin"
    source = Source(Path("plugin").absolute(), "scale.cu")
    options = Options(compilers=("nvcc",), limits=Limits(seconds=30.0))
    target = Target("nvidia", "sm_90")
    compiler(f'touch product; echo $$ > "{file}.new"; mv "{file}.new" "{file}"; exec sleep 600')
    gone = _killed(lambda: build(source, target, options, ("scale",)), file, 1)
    (left,) = Path(tempfile.tempdir).glob("portakernel-native-*")
    os.utime(left, (time.time() - 90,) * 2)
    file.unlink()
    live = os.fork()
    if live == 0:
        try:
            build(source, target, Options(compilers=("nvcc",), defines=(("OTHER", 1),)), ("scale",))
        finally:
            os._exit(1)
    _pids(file, 1)
    (theirs,) = Path(tempfile.tempdir).glob("portakernel-native-*")
    os.utime(theirs, (time.time() - 90,) * 2)
    compiler("exit 1")
    try:
        build(source, target, options, ("scale",))
    except Exception as error:  # noqa: BLE001 - it is compared below
        said = str(error)
    else:
        said = ""
    still = theirs.exists()
    os.kill(live, signal.SIGKILL)
    os.waitpid(live, 0)
    return [gone, left.exists(), still, said.startswith("cannot_run: nvcc 13.0.88 ")]


def test_what_a_killed_build_left_goes_with_the_next_and_what_another_uses_stays(fault):
    outcome = fault(_build_of_a_killed_parent)
    assert outcome.returned == [[True], False, True, True], outcome.stderr


def _compiler_without_room(limit):
    """A compiler that writes more than there is room for."""
    import resource

    from portakernel.authoring.native import Limits
    from portakernel.native.process import run

    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    ran = run(["/bin/sh", "-c", "head -c 10000000 /dev/zero > made"], Limits(), folder=Path.cwd())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return [ran.status != 0 or Path("made").stat().st_size <= limit, ran.timed_out]


def test_a_compiler_that_may_write_no_more_is_told_apart_from_one_that_hangs(fault):
    assert fault(_compiler_without_room, 65536).returned == [True, False]


def _descriptors_run_out():
    """No descriptor is left for the processes that a compiler takes."""
    import resource

    from portakernel.authoring.native import Limits
    from portakernel.native.process import run

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    while len(os.listdir("/proc/self/fd")) < 58:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    said = []
    for _ in range(6):
        try:
            said.append(run(["true"], Limits(), folder=Path.cwd()).status)
        except OSError as error:
            said.append(error.strerror)
        taken.append(os.open("/dev/null", os.O_RDONLY)) if len(os.listdir("/proc/self/fd")) < 63 else None
    open_then = len(os.listdir("/proc/self/fd"))
    for descriptor in taken:
        os.close(descriptor)
    return [said, open_then <= 64, run(["true"], Limits(), folder=Path.cwd()).status]


def test_without_descriptors_a_run_says_so_and_leaves_none_open(fault):
    said, bounded, after = fault(_descriptors_run_out).returned
    assert set(said) <= {0, "Too many open files"}
    assert "Too many open files" in said
    assert (bounded, after) == (True, 0)


def _garbage_is_made():
    """A compiler that ends well and leaves no machine code; what it left is kept nowhere."""
    from portakernel.authoring.native import Limits, Options, Source, build, cache
    from portakernel.words.target import Target

    Path("bin").mkdir()
    Path("plugin").mkdir()
    Path("plugin/scale.cu").write_text("int x;\n", encoding="utf-8")
    nvcc = Path("bin/nvcc").absolute()
    nvcc.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "release 13.0, V13.0.88" && exit 0\n'
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && head -c 5000 /dev/urandom > "$2"; shift; done\n',
        encoding="utf-8",
    )
    nvcc.chmod(0o755)
    os.environ["PATH"] = f"{nvcc.parent}:/usr/bin:/bin"
    options = Options(compilers=("nvcc",), limits=Limits(seconds=30.0))
    try:
        build(Source(Path("plugin").absolute(), "scale.cu"), Target("nvidia", "sm_90"), options, ("scale",))
    except Exception as error:  # noqa: BLE001 - it is compared below
        return [str(error), [str(one.folder) for one in cache().entries()]]
    return None


def test_what_is_no_machine_code_is_not_kept(fault):
    said, entries = fault(_garbage_is_made).returned
    assert "is no 64-bit ELF file" in said
    assert entries == []
