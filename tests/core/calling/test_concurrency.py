"""Many threads, forked children, changing policies, devices in turn: always the right kernel."""

from __future__ import annotations

import os
import random
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from portakernel.deciding.policies import make_layer

THREADS = 8


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def together(work: Callable[[int], None]) -> None:
    """Runs ``work`` in eight threads that begin at once; what one of them raises is raised here."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


def test_each_thread_gets_the_kernel_of_its_own_policy_form_and_size(ops):
    wanted: list[dict[str, int]] = [{} for _ in range(THREADS)]

    def work(number: int) -> None:
        chance = random.Random(number)
        layers = {
            "raw_kernels.add": None,
            "torch.add": make_layer("context", use="torch"),
            "reference.add": make_layer("context", use="reference"),
        }
        for _ in range(150):
            name, layer = chance.choice(list(layers.items()))
            token = ops.dispatcher.context_layers.set(() if layer is None else (layer,))
            shape = (chance.randint(1, 9), chance.randint(1, 9))[: chance.randint(1, 2)]
            x, y = normal(*shape), normal(*shape)
            with torch.inference_mode(chance.random() < 0.5):
                assert torch.equal(ops.add(x, y), x + y)
            ops.dispatcher.context_layers.reset(token)
            wanted[number][name] = wanted[number].get(name, 0) + 1

    together(work)
    assert ops.served("add") == {name: sum(each.get(name, 0) for each in wanted) for name in ops.served("add")}


def test_a_policy_that_changes_while_others_call_never_gives_a_wrong_number(ops):
    finished = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for turn in range(200):
                ops.dispatcher.set_process_layer(make_layer("set_policy", deny="raw_kernels") if turn % 2 else None)
            finished.set()
            return
        while not finished.is_set():
            x = normal(3, 4)
            assert torch.equal(ops.add(x, x), x + x)

    together(work)
    ops.dispatcher.set_process_layer(make_layer("set_policy", deny="raw_kernels"))
    before = ops.served("add").get("torch.add", 0)
    ops.add(normal(3, 4), normal(3, 4))
    assert ops.served("add")["torch.add"] == before + 1


SLOW_PLUGIN = """
schema_version: 1
plugin: slow
ready: slow.probe:ready
kernels:
  - op: add
    entry: slow.kernels:add
    targets: {cpu: any}
    dtypes: {x: [float32], y: [x]}
    priority: 95
"""
FIRST_CALLS = """
import sys, threading, torch
from portakernel.calling.caller import OpCaller
from portakernel.calling.public import public_function
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.plugin_manager import Package, PluginManager, find_folder
from portakernel.registry.registry import Registry
from portakernel.torch_bridge.registration import Bridge

modules = {"slow": "slow", "cpu": "portakernel_backends.cpu"}
packages = [
    Package(name, module, "portakernel", "1", find_folder(module), first_party=True) for name, module in modules.items()
]
bridge = Bridge(OpCaller(contract("add"), Dispatcher(Registry(PluginManager(packages)), Config()), "portakernel_first"))
add, start, x = public_function(bridge.caller), threading.Barrier(8), torch.ones(3)

def work():
    start.wait()
    assert torch.equal(add(x, x), 2 * x)

threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sys.modules["slow"].LOADED, sum(bridge.caller.table.counts().values()))
"""


@pytest.fixture
def run_python(python):
    """What a program prints, with these folders on its path."""

    def run(code: str, *path: Path) -> str:
        found = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(found)}
        done = python("-c", textwrap.dedent(code), env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_a_first_call_from_many_threads_probes_and_loads_a_kernel_once(run_python, tmp_path):
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(SLOW_PLUGIN, encoding="utf-8")
    (folder / "__init__.py").write_text("LOADED = []\n", encoding="utf-8")
    # each gives other threads their turn in the middle
    yielding = "import slow, threading\nthreading.Event().wait(0.05)\nslow.LOADED.append('{}')\n"
    (folder / "kernels.py").write_text(
        yielding.format("kernel") + "def add(x, y, *, out=None):\n    return x + y\n", encoding="utf-8"
    )
    probe = "import slow, threading\ndef ready(device):\n    threading.Event().wait(0.05)\n"
    (folder / "probe.py").write_text(probe + "    slow.LOADED.append('probe')\n", encoding="utf-8")
    assert run_python(FIRST_CALLS, tmp_path) == "['probe', 'kernel'] 8"


FORKED = """
import os, signal, sys, threading, torch
import portakernel
from portakernel import ops
from portakernel.runtime import caller, dispatcher

signal.alarm(100)  # a child that hangs ends, and fails the test
x = torch.randn(3, 4)
ops.add(x, x)
tables = caller("add").table
held, go_on = threading.Event(), threading.Event()

def hold():
    ready = dispatcher().readiness._locks
    with tables._lock, ready._guard, ready.holding("an entry", "an entry"), dispatcher().registry.manager._lock:
        held.set()
        go_on.wait()

other = threading.Thread(target=hold)
other.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(50)
    ok = torch.equal(ops.add(x, x), x + x)
    portakernel.set_policy(use="torch")
    ok &= torch.equal(ops.add(x, x), x + x) and torch.allclose(ops.rms_norm(x, x[0]).shape[0] * x / 3, x)
    served = {row.kernel for row in portakernel.stats() if row.op == "add"}
    os._exit(0 if ok and "torch.add" in served else 1)
go_on.set()
other.join()
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
ok = torch.equal(ops.add(x, x), x + x)
print(status, ok)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_calls_and_follows_its_own_policy_though_a_parents_thread_held_every_lock(run_python):
    assert run_python(FORKED) == "0 True"


def test_tensors_of_two_devices_in_turn_each_go_where_they_belong(ops, calls):
    """A meta device has no memory: had its tensors the key of the CPU's, a kernel would read nothing."""
    for _ in range(3):
        x = normal(3, 4)
        assert torch.equal(ops.add(x, x), x + x)
        assert ops.add(x.to("meta"), x.to("meta")).device.type == "meta"
    assert calls == ["add"] * 3


@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU beside the CPU")
def test_tensors_of_the_cpu_and_of_every_gpu_in_turn():
    from portakernel import ops

    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    for _ in range(3):
        for device in devices:
            x, weight = torch.randn(3, 64, device=device), torch.randn(64, device=device)
            y = ops.rms_norm(x, weight)
            assert y.device == x.device
            wanted = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6) * weight.double()
            torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
