"""What all tests share: one thread for each process, our own files that are read once, processes that are forked."""

import atexit
import functools
import gc
import importlib
import itertools
import json
import logging
import math
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.spawn
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# Before torch is imported: as many processes run as there are cores, and what torch's threads take then, waiting for
# each other, is half of a run. Those that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "torch" in sys.modules:
    sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# Inductor compiles a library for each kind of vector instructions that the CPU has, and loads it in a process of its
# own, to see whether compiler and torch know them: ten seconds, and one in each process later. These they may not know.
CPU = Path("/proc/cpuinfo")
if CPU.exists() and "amx_fp16" not in CPU.read_text(encoding="utf-8"):
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# OpenCL's driver for CPUs compiles the tiny kernel that a device is probed with: half a second, unless it has it.
if "POCL_CACHE_DIR" not in os.environ:
    OPENCL_CACHE = tempfile.TemporaryDirectory(prefix="opencl")  # of this process, which the workers inherit
    os.environ["POCL_CACHE_DIR"] = OPENCL_CACHE.name

# What a machine lacks skips with a reason that begins so, or comes from `importorskip`. Where nothing may lack, as in
# .ci/run, that is a failure; what needs a GPU, or another system, skips there too, with a reason that says so.
LACKS = ("lacks ", "could not import ")
NOTHING_MAY_LACK = os.environ.get("TESTS_REQUIRE_ALL") == "1"

ROOT = Path(__file__).parents[1]

# Where tests, and the processes that they fork, find `first_party`.
sys.path.append(str(ROOT / "tests"))

# What programs import that tests run, from others than us: autograd loads symbolic shapes when it is given gradients.
IMPORTED = (
    "torch", "torch.fx.experimental.symbolic_shapes", "numpy.typing", "pytest", "typer", "rich.console", "pydantic",
    "yaml", "pluggy", "packaging.requirements", "filelock", "platformdirs", "sqlite3", "logging.config",
)  # fmt: skip

# What else they import that compile.
COMPILING = ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor", "triton", "networkx", "jinja2")

# One process for all workers of a run has imported that, when the first of them asks, and forks their programs.
FORKING: subprocess.Popen[bytes] | None = None
if "WARM_PYTHON" not in os.environ:
    WARM_FOLDER = tempfile.TemporaryDirectory(prefix="warm")  # a socket's name is short
    os.environ["WARM_PYTHON"] = f"{WARM_FOLDER.name}/python"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ["WARM_PYTHON"])
        listener.listen()
        number = str(listener.fileno())
        command = [sys.executable, str(ROOT / "tests" / "warm_python.py"), number, os.environ["WARM_PYTHON"], *IMPORTED]
        FORKING = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])

# These take ten seconds and more each: they come first, so that at the end no worker waits for another's.
LONG = (
    "tests/examples/test_opencl_example.py",
    "tests/examples/test_numbered_examples.py::test_a_script_prints_what_it_promises",
    "tests/authoring/test_guides.py",
    "tests/conformance/test_pytest_plugin.py::test_kernels_of_a_plugin_are_items_in_every_worker",
    "tests/docs/test_readme.py::test_the_demo_prints_what_is_shown",
    "tests/distributed/test_sharding.py::test_over_a_mesh_of_two_dimensions_each_splits_along_its_own",
    "tests/conformance/test_kit.py::test_triton_kernel_conforms_in_its_interpreter",
    "tests/conformance/test_kit.py::test_kernel_conforms_on_the_cpu_for_inputs_never_seen_before",
    "tests/offline/test_gate.py",
    "tests/authoring/test_faulty_ops.py",
    "tests/authoring/test_triton_from_outside.py",
    "tests/authoring/test_shipped_ops.py::test_every_command_knows_it",
    "tests/cli/test_check.py",
)


def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Workers are forked, too: what they import as they collect takes each of them three seconds."""
    if sys.platform != "linux" or not all(spec.popen for spec in specs):
        return
    execnet = importlib.import_module("execnet")
    script = Path(tempfile.mkdtemp(dir=Path(os.environ["WARM_PYTHON"]).parent), "python")
    write_interpreter(script, COMPILING, sys.executable, {})
    specs[:] = [execnet.XSpec(f"{spec}//python={script}") for spec in specs]


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait for processes, which wait for a compiler or for time to pass."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("TESTS_TURN", turn_of(config))  # which the workers inherit
    """Importing ``first_party`` is what keeps our files; whoever only hands tests to workers needs none."""
    if config.getoption("dist", "no") == "no":
        importlib.import_module("first_party")


@pytest.hookimpl(trylast=True)  # behind the shuffling
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = others_turns(items)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
    items[:] = [item for item in items if item.nodeid not in others]
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def others_turns(items: list[pytest.Item]) -> set[str]:
    """Of tests marked ``turns(n)``, those that this tree does not draw: of each function a part of one in n is left.

    At least one of each function is; where tests are named, all are.
    """
    drawn, functions = os.environ.get("TESTS_TURN"), dict[tuple[str, int], list[str]]()
    for item in items if drawn else ():
        if (mark := item.get_closest_marker("turns")) is not None:
            functions.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item.nodeid)
    others = set[str]()
    for (_, turns), tests in functions.items():
        tests.sort(key=lambda test: (zlib.crc32(f"{drawn} {test}".encode()), test))
        others.update(tests[math.ceil(len(tests) / turns) :])
    return others


def turn_of(config: pytest.Config) -> str:
    """What draws those tests: the tree of the last commit; nothing where a run names its tests, or all are wanted."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword or config.option.markexpr:
        return ""
    found = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Garbage waits: what modules make while they are imported stays, and would be looked through again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What is there by now is kept out of later collections of garbage, which tests and torch's compiler ask for.

    Collections are rarer than Python's own, one in 700 new objects: looking for cycles took Triton's interpreter a
    sixth of its time, torch's compiler a tenth, and found next to none. torch has forty loggers that pass nothing on;
    pytest would hang its handlers onto each, six times in every test.
    """
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True


def pytest_unconfigure() -> None:
    """At the very end it is garbage like any other: libraries count what is left, and say so."""
    atexit.register(gc.unfreeze)
    if FORKING is not None:
        FORKING.communicate(timeout=60)  # the end of its stdin


def pytest_runtest_call() -> None:
    leave_compiler_alone()


def leave_compiler_alone() -> None:
    """Torch's compiler does not do here what it does for those who watch it, a tenth of its work and more.

    It writes out every graph once somebody listens to its trace, as pytest does to each logger that passes nothing on;
    and it flushes the processor's caches to tell how long a graph's guards take.
    """
    trace = logging.getLogger("torch.__trace")
    for listener in [listener for listener in trace.handlers if type(listener).__module__ == "_pytest.logging"]:
        trace.removeHandler(listener)
    if "torch._dynamo.guards" in sys.modules:
        sys.modules["torch._dynamo.guards"].__dict__["profile_guard_manager"] = lambda *_: 0.0


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draws of torch follow the run's seed, as those of `random` and NumPy: `--randomly-seed=N` repeats a failure."""
    leave_compiler_alone()
    seed = item.config.getoption("randomly_seed", None)
    if isinstance(seed, int) and "torch" in sys.modules:
        _seed_torch(seed + zlib.crc32(item.nodeid.encode()))


def _seed_torch(seed: int) -> None:
    """As ``torch.manual_seed``, which takes a millisecond to leave word for devices that torch is not built for."""
    torch = sys.modules["torch"]
    (torch if torch.accelerator.current_accelerator() is not None else torch.default_generator).manual_seed(seed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return judged((yield))


def judged(report: Report) -> Report:
    """The report of a test or a module, a failure where it was skipped for what may not lack."""
    if NOTHING_MAY_LACK and report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        file, line, reason = report.longrepr
        if reason.removeprefix("Skipped: ").startswith(LACKS):
            report.outcome, report.longrepr = (
                "failed",
                f"{file}:{line}: this machine {reason.removeprefix('Skipped: ')}",
            )
    return report


def modules_in(*rooms: str) -> list[str]:
    """The names of the modules of the core, or of the kit, that stand in these folders."""
    found = list[str]()
    for root, room in itertools.product((ROOT, ROOT / "kit"), rooms):
        files = [file for file in sorted((root / room).glob("*.py")) if file.stem != "__init__"]
        found += [".".join(file.relative_to(root).with_suffix("").parts) for file in files]
    return found


@pytest.fixture(scope="session", autouse=True)
def _nothing_measured() -> Iterator[None]:
    """What this machine's user has measured decides nothing here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("portakernel.tuning.place.default_folder", lambda: f"{os.devnull}/none")
        yield


@pytest.fixture(scope="session")
def imported_first() -> tuple[str, ...]:
    """What calls and commands import before they ask which plugins there are."""
    return (
        "torch", "numpy.typing", "pytest", "typer", "filelock", "platformdirs", "sqlite3",
        "portakernel.api", "portakernel.ops", "portakernel.calling.public", "portakernel.torch_bridge.registration",
        "portakernel.authoring.host", "portakernel.authoring.tensors", "portakernel.native.entry",
        *modules_in("portakernel/contracts", "portakernel/deciding", "portakernel/matrix"),
        *modules_in("portakernel/cli/doctor", "portakernel/cli/explain", "portakernel_kit/cli/validate"),
        "portakernel.cli.list_kernels", "portakernel.cli.matrix", "portakernel_kit.tune.worker",
        "portakernel_kit.tune.local_workers", "forked_first", "fault_process",
    )  # fmt: skip


@pytest.fixture(scope="session")
def imported_to_compile() -> tuple[str, ...]:
    """What torch.compile and DTensors import when they are first used, as workers have."""
    return COMPILING


@pytest.fixture(scope="session")
def imported_with_triton(imported_first: tuple[str, ...]) -> tuple[str, ...]:
    """And what compiles Triton kernels; it begins as the environment says, which is too late for TRITON_INTERPRET."""
    return (*imported_first, "triton", "portakernel.offline.workers", "portakernel.triton_launch.offline")


@pytest.fixture(scope="session")
def fork_server(imported_first: tuple[str, ...], forked_interpreter: Callable[..., Path]) -> Any:
    """Forks a process that has imported torch and portakernel already, and made nothing of either."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imported_first))
    started_as = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(str(forked_interpreter(imported_first)))
    multiprocessing.forkserver.ensure_running()
    multiprocessing.set_executable(started_as)
    return context


@pytest.fixture
def forked_observers(fork_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are observed in forked processes, not in ones that have to import torch first."""
    monkeypatch.setattr("portakernel_kit.conformance.observing.isolation.get_context", lambda _: fork_server)


@pytest.fixture
def forked_measuring(forked_interpreter: Callable[..., Path], imported_first: tuple[str, ...]) -> Iterator[None]:
    """Calls are measured in forked processes, not in ones that have to import torch and read all kernels' sources."""
    started_as = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(str(forked_interpreter(imported_first)))
    yield
    multiprocessing.set_executable(started_as)


@pytest.fixture
def forked_workers(
    forked_interpreter: Callable[..., Path], imported_with_triton: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are compiled in forked processes, not in ones that have to import torch and Triton first."""
    monkeypatch.setattr("portakernel.offline.workers.sys.executable", str(forked_interpreter(imported_with_triton)))


@functools.cache
def warm_address(imports: tuple[str, ...]) -> str:
    """The socket of a process that has imported these modules, and IMPORTED, and forks (warm_python.py)."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["WARM_PYTHON"])
        connection.sendall(json.dumps({"imports": imports}).encode() + b"\n")
        return connection.makefile("r").readline().strip()


# What stands for an interpreter: with options that it does not know, such as -I, it is the real one. Others say that
# streams are not buffered, and hand PYTHONDONTWRITEBYTECODE on.
INTERPRETER = """\
#!/bin/sh
while test "$1" = -u || test "$1" = -B; do shift; done
case "$1" in
-c | -m | [!-]*) exec {forked} "$@" ;;
*) exec {real} "$@" ;;
esac
"""


def write_interpreter(script: Path, imports: tuple[str, ...], real: Path | str, told: Mapping[str, str]) -> None:
    """Makes ``script`` a command that does what ``python`` does, with programs that are forked."""
    client = ROOT / "tests" / "authoring" / "warm_command.py"
    forked = [sys.executable, "-I", "-S", client, warm_address(imports), json.dumps(told)]
    text = INTERPRETER.format(forked=shlex.join(map(str, forked)), real=shlex.quote(str(real)))
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)


@pytest.fixture(scope="session")
def forked_interpreter(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A command that does what ``python`` does, with programs that are forked, as those that they start are in turn.

    ``real`` is the interpreter that it stands for, and ``site`` where its packages are, beside those of this one.
    """

    def made(imports: tuple[str, ...] = (), *, real: Path = Path(sys.executable), site: Path | None = None) -> Path:
        script = tmp_path_factory.mktemp("interpreter") / "python"
        told = {"executable": str(script)} | ({} if site is None else {"site": str(site)})
        write_interpreter(script, imports, real, told)
        return script

    return made


@pytest.fixture(scope="session")
def python(forked_interpreter: Callable[..., Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python("-c", code, *arguments)`` or ``python("-m", module, ...)`` in a process of its own, without the wait.

    As ``subprocess.run([sys.executable, ...], capture_output=True, text=True)``, but the process is forked from one
    that has imported torch, which takes two seconds, and what else is in IMPORTED and ``imports``; with ``forks``, so
    are those that it starts as Python. Where what a process imports, or when, is what is tested, start one.
    """

    def run(
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float = 300,
        imports: tuple[str, ...] = (),
        forks: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        given = [str(argument) for argument in arguments]
        request = {"arguments": given, "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd())}
        request |= {"numbers": [1, 2]} | ({"executable": str(forked_interpreter(imports))} if forks else {})
        readers, writers = zip(os.pipe(), os.pipe(), strict=True)
        with socket.socket(socket.AF_UNIX) as connection, ThreadPoolExecutor(2) as threads:
            connection.connect(warm_address(imports))
            line = json.dumps(request).encode() + b"\n"
            connection.sendall(line[socket.send_fds(connection, [line], writers) :])
            for writer in writers:
                os.close(writer)
            streams = [threads.submit(_all_of, reader) for reader in readers]
            answers = connection.makefile("r")
            process = int(answers.readline())
            connection.settimeout(timeout)
            try:
                status = int(answers.readline())
                out, err = (stream.result(timeout) for stream in streams)
            except TimeoutError as error:
                os.kill(process, signal.SIGKILL)
                raise subprocess.TimeoutExpired(
                    given, timeout, *(stream.result(timeout) for stream in streams)
                ) from error
        return subprocess.CompletedProcess([sys.executable, *given], status, out, err)

    return run


def _all_of(reader: int) -> str:
    with open(reader, encoding="utf-8") as text:
        return text.read()


@pytest.fixture(scope="session")
def units_in_turn() -> Callable[[Any, Callable[[Any], bool]], tuple[Any, ...]]:
    """Of a suite's units, narrowed by ``served``, one combination of dtypes for each case, and each in some case.

    For modes of execution in which each with each takes minutes.
    """

    def picked_of(suite: Any, served: Callable[[Any], bool]) -> tuple[Any, ...]:
        groups: dict[str, list[Any]] = {}
        for unit in filter(served, suite.units()):
            groups.setdefault(unit.case.name if unit.case is not None else unit.name, []).append(unit)
        used: Counter[Any] = Counter()
        picked, left = [], []
        for units in groups.values():
            least = min(units, key=lambda unit: used[unit.dtypes])
            used[least.dtypes] += 1
            picked.append(least)
            left += [unit for unit in units if unit is not least]
        first_of = {unit.dtypes: unit for unit in reversed(left) if unit.dtypes not in used}
        return (*first_of.values(), *picked)

    return picked_of
