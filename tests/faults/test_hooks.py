"""Plugins' code that raises anything, never returns, or calls back costs its plugin alone."""

from __future__ import annotations

import time

import fault_fakes as fakes
import pytest

PATIENCE = {"PORTAKERNEL_PATIENCE_S": "1"}
PANIC = "class PanicException(BaseException): ...\n"
RUN = "def run(x, y, *, out=None): raise AssertionError('it was to rest')\n"
RAISED = {
    "a panic of Rust": (PANIC, "PanicException('unwrap on None')", "PanicException: unwrap on None"),
    "CancelledError": ("import asyncio\n", "asyncio.CancelledError()", "CancelledError"),
    "GeneratorExit": ("", "GeneratorExit('over')", "GeneratorExit: over"),
    "SystemExit": ("", "SystemExit(3)", "SystemExit: 3"),
    "RecursionError": ("", "RecursionError('deep')", "RecursionError: deep"),
    "text that raises": (
        "class Mute(Exception):\n    def __str__(self): raise BaseException('no')\n",
        "Mute()",
        "Mute: its message cannot be read: BaseException",
    ),
}
HANG = "import threading\nthreading.Event().wait()\n"


def _broken(stage, kind):
    """A plugin whose code raises at a stage, and an op's result beside it."""
    before, error, _ = RAISED[kind]
    _install(stage, before, f"raise {error}")
    result = fakes.call()
    if stage == "decided":
        result = fakes.call()
    return {"result": result, "faults": fakes.faults()}


def _hanging(stage):
    _install(stage, "", "import threading; threading.Event().wait()")
    began = time.monotonic()
    results = [fakes.call(), fakes.call()]
    took = time.monotonic() - began
    import torch

    from portakernel import ops

    results.append(ops.rms_norm(torch.ones(2, 4), torch.ones(4), eps=0.0).tolist()[0])  # it is asked no more
    return {"results": results, "took": took, "faults": fakes.faults()}


def _install(stage, before, line):
    hook = {
        "hook": fakes.HOOK.format("portakernel_kernels()", line),
        "decided": fakes.HOOK.format("portakernel_decided(decision)", line),
        "targets": fakes.HOOK.format("portakernel_targets()", line),
    }
    name = f"portakernel_{ {'hook': 'kernels', 'decided': 'decided'}.get(stage, '') }"
    if stage == "import":
        fakes.write("ill", hooks=["portakernel_kernels"], source=f"{before}\n{line}\n")
    elif stage == "load":
        fakes.write("ill", kernel="k", source=f"{before}\n{line}\n")
    elif stage == "targets":
        backend = "schema_version: 1\nbackend: ill\nvendor: ill\ntorch_device: cpu\nattach: true\nopen_ended: true\n"
        fakes.write("ill", backend=backend, source=before + hook[stage])
    elif stage == "check":
        source = f"{before}{RUN}def check(M):\n    {line}\n"
        manifest = "schema_version: 1\nplugin: ill\nkernels:\n" + fakes.KERNEL % ("k", "fake_ill", 1000)
        manifest = manifest.replace("priority: 1000", 'priority: 1000, check: {entry: "fake_ill:check", reads: [M]}')
        fakes.write("ill", source=source, manifest=manifest)
    elif stage == "ready":
        source = f"{before}{RUN}def ready(device):\n    {line}\n"
        fakes.write("ill", kernel="k", top="ready: fake_ill:ready\n", source=source)
    else:
        fakes.write("ill", hooks=[name], source=before + hook[stage])


REPORTED = {
    "import": ("import", "importing fake_ill"),
    "load": ("import", "importing fake_ill:run"),
    "hook": ("hook", "portakernel_kernels"),
    "decided": ("hook", "portakernel_decided"),
    "targets": ("hook", "portakernel_targets"),
    "ready": ("ready", "fake_ill:ready"),
    "check": ("check", "fake_ill:check"),
}


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("stage", ["import", "load", "hook", "ready", "check"])
def test_whatever_a_plugin_raises_is_kept_as_its_fault_and_the_call_is_served(fault, stage, kind):
    outcome = fault(_broken, stage, kind, env={"PORTAKERNEL_PREFER": "ill"} if stage == "load" else {})
    assert outcome.status == 0, outcome.stderr
    at, what = REPORTED[stage]
    said = [["ill", at, f"{what} raised {RAISED[kind][2]}"]]
    assert outcome.returned == {"result": [3, 3, 3], "faults": said}


@pytest.mark.parametrize("stage", ["decided", "targets"])
def test_a_panic_in_any_hook_is_kept_as_a_fault(fault, stage):
    outcome = fault(_broken, stage, "a panic of Rust")
    assert outcome.status == 0, outcome.stderr
    at, what = REPORTED[stage]
    assert outcome.returned["faults"] == [["ill", at, f"{what} raised PanicException: unwrap on None"]]
    assert outcome.returned["result"] == [3, 3, 3]


@pytest.mark.parametrize("stage", [stage for stage in REPORTED if stage != "check"])
def test_what_does_not_return_is_waited_for_once_within_the_bound_and_rests(fault, stage):
    outcome = fault(_hanging, stage, env=PATIENCE | ({"PORTAKERNEL_PREFER": "ill"} if stage == "load" else {}))
    assert outcome.status == 0, outcome.stderr
    at, what = REPORTED[stage]
    said = [["ill", at, f"{what} did not return within 1 s, and rests in this process"]]
    # of the ill one alone: where much else runs, a healthy plugin's driver may take longer than that too
    assert [fault for fault in outcome.returned["faults"] if fault[0] == "ill"] == said
    assert outcome.returned["results"] == [[3, 3, 3], [3, 3, 3], [1, 1, 1, 1]]
    assert 1 <= outcome.returned["took"] < 30


def _other_calls_go_on():
    """One thread waits for a probe of one plugin; another op's call is served meanwhile."""
    import threading

    import torch

    fakes.call()
    source = "import threading\nENTERED, LEAVE = threading.Event(), threading.Event()\n" + RUN
    source += "def ready(device):\n    ENTERED.set()\n    LEAVE.wait()\n"
    fakes.write("slow", kernel="k", top="ready: fake_slow:ready\n", source=source)
    from portakernel.contracts import contract
    from portakernel.deciding.asking import ask
    from portakernel.deciding.dispatcher import Dispatcher

    now = Dispatcher()
    device = next(d for d in now.registry.devices if d.torch_device == "cpu" and not d.attached)

    def decide(op):
        return str(now.decide(ask(contract(op), device.target, dtypes="float32", device=device)).chosen is not None)

    first = threading.Thread(target=decide, args=("add",), daemon=True)
    first.start()
    import importlib

    entered = now.readiness.entry("fake_slow:ready").__globals__
    assert entered["ENTERED"].wait(20)
    del importlib
    served = decide("rms_norm")
    waiting = first.is_alive()
    entered["LEAVE"].set()
    first.join(20)
    return [served, waiting, first.is_alive(), torch.ones(1).item()]


def test_while_one_plugin_is_waited_for_calls_that_do_not_need_it_go_on(fault):
    outcome = fault(_other_calls_go_on)
    assert outcome.returned == ["True", True, False, 1], outcome.stderr


CALLS_BACK = {
    "kernels": (
        "portakernel_kernels",
        "portakernel.explain('add', target='cpu:x86_64')",
        (
            "portakernel_kernels raised CalledBackError: portakernel's list of kernels is being made, which waits for"
            " what asks for it now: a plugin's hook, or the import of its module. Ask portakernel later, when an op is"
            " called"
        ),
    ),
    "kernels, calling an op": (
        "portakernel_kernels",
        "import torch; portakernel.ops.add(torch.ones(3), torch.ones(3))",
        "portakernel_kernels raised CalledBackError: the registration of portakernel's ops is being made, which waits",
    ),
    "decided, calling an op": (
        "portakernel_decided",
        "import torch; portakernel.ops.add(torch.ones(3), torch.ones(3))",
        "",
    ),
    "decided, explaining": ("portakernel_decided", "portakernel.explain('rms_norm', target='cpu:x86_64')", ""),
    "decided, asking for targets": ("portakernel_decided", "portakernel.targets()", ""),
}


def _calls_back(kind):
    hook, line, _ = CALLS_BACK[kind]
    argument = "decision" if hook == "portakernel_decided" else ""
    source = "import portakernel\n" + fakes.HOOK.format(f"{hook}({argument})", f"{line}\n    return []")
    fakes.write("ill", hooks=[hook], source=source)
    return {"result": fakes.call(), "faults": fakes.faults()}


@pytest.mark.parametrize("kind", CALLS_BACK)
def test_a_hook_that_calls_back_gets_an_answer_or_a_taught_error(fault, kind):
    outcome = fault(_calls_back, kind, seconds=40)
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned["result"] == [3, 3, 3]
    said = CALLS_BACK[kind][2]
    assert [reason.startswith(said) for _, _, reason in outcome.returned["faults"]] == [True] * bool(said)


def _targets_ask_for_targets():
    source = "import portakernel\n" + fakes.HOOK.format("portakernel_targets()", "return portakernel.targets()")
    backend = "schema_version: 1\nbackend: ill\nvendor: ill\ntorch_device: ill\nopen_ended: true\n"
    fakes.write("ill", backend=backend, source=source)
    import portakernel

    found = [device.torch_device for device in portakernel.targets()]
    return {"found": "cpu" in found, "result": fakes.call(), "faults": fakes.faults()}


def test_a_backend_that_asks_for_the_devices_it_is_to_find_is_told_so(fault):
    outcome = fault(_targets_ask_for_targets, seconds=40)
    assert outcome.status == 0, outcome.stderr
    ((_, stage, reason),) = outcome.returned.pop("faults")
    assert outcome.returned == {"found": True, "result": [3, 3, 3]}
    assert stage == "hook"
    assert reason == (
        "portakernel_targets raised CalledBackError: portakernel_targets of ill (ill_dist 1.0) has begun and waits"
        " for this very call; ask portakernel once it has returned"
    )


def _import_calls_an_op(hooks):
    source = "import torch\nfrom portakernel import ops\nops.add(torch.ones(2), torch.ones(2))\n" + RUN
    if hooks:
        source += fakes.HOOK.format("portakernel_kernels()", "return []")
        fakes.write("ill", hooks=["portakernel_kernels"], source=source)
    else:
        fakes.write("ill", kernel="k", priority=1, source=source)
    return {"result": fakes.call(), "faults": [fault[:2] for fault in fakes.faults()]}


@pytest.mark.parametrize("hooks", [False, True])
def test_a_plugin_whose_import_calls_an_op_stops_nobody(fault, hooks):
    outcome = fault(_import_calls_an_op, hooks, seconds=40)
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned == {"result": [3, 3, 3], "faults": [["ill", "import"]] * hooks}


def _the_user_imports_a_plugin_that_calls_an_op():
    source = "import torch\nfrom portakernel import ops\nSUM = ops.add(torch.ones(2), torch.ones(2)).tolist()\n" + RUN
    source += fakes.HOOK.format("portakernel_kernels()", "return []")
    fakes.write("ill", hooks=["portakernel_kernels"], source=source)
    import fake_ill

    return [fake_ill.SUM, fakes.call()]


def test_a_plugins_module_that_is_imported_first_and_calls_an_op_does_not_wait_for_itself(fault):
    outcome = fault(_the_user_imports_a_plugin_that_calls_an_op, seconds=30)
    assert outcome.returned == [[2, 2], [3, 3, 3]], outcome.stderr


def _endless_answers():
    hook = fakes.HOOK.format("portakernel_kernels()", "import itertools\n    return itertools.repeat({'op': 'add'})")
    fakes.write("ill", hooks=["portakernel_kernels"], source=hook)
    return {"result": fakes.call(), "faults": fakes.faults()}


def test_an_answer_without_end_is_bounded(fault):
    outcome = fault(_endless_answers)
    said = "portakernel_kernels raised PluginError: yielded more than 100000 answers; give a list that ends"
    assert outcome.returned == {"result": [3, 3, 3], "faults": [["ill", "hook", said]]}, outcome.stderr


def _no_threads():
    """As where the system gives no thread: what would run in one runs here."""
    import threading

    fakes.write("sound", hooks=["portakernel_kernels"], source=fakes.HOOK.format("portakernel_kernels()", "return []"))

    def start(thread):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start
    return {"result": fakes.call(), "faults": fakes.faults()}


def test_a_host_that_gives_no_threads_serves(fault):
    assert fault(_no_threads).returned == {"result": [3, 3, 3], "faults": []}


def _interrupted():
    import signal
    import threading

    fakes.write("ill", hooks=["portakernel_kernels"], source=HANG)
    threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
    try:
        fakes.call()
    except KeyboardInterrupt:
        return "interrupted"


def test_who_waits_for_a_plugin_can_interrupt_it(fault):
    assert fault(_interrupted, seconds=30).returned == "interrupted"


def _warned():
    from portakernel.host import foreign

    foreign.WARN_S = 0.1
    _install("hook", "", "import threading; threading.Event().wait()")
    return fakes.call()


def test_the_log_names_what_is_waited_for(fault):
    outcome = fault(_warned, env=PATIENCE)
    assert outcome.returned == [3, 3, 3]
    assert (
        "portakernel waits for portakernel_kernels of ill (ill_dist 1.0), for 0.1 s so far; after 1 s it goes on"
        " without (PORTAKERNEL_PATIENCE_S)\n"
    ) in outcome.stderr
