"""A driver in trouble costs a CPU call nothing, and doctor one line; only the vendor of a call's device is probed."""

from __future__ import annotations

import subprocess
import sys
import time

import fault_fakes as fakes
import pytest

# What NVML does when it is initialised, in C.
NVML = {
    "hangs": "for (;;) pause();",
    "hangs and cannot be terminated": "sigset_t all; sigfillset(&all); sigprocmask(SIG_BLOCK, &all, 0); for (;;);",
    "aborts": "abort();",
    "crashes": "*(volatile int *)0 = 1; return 0;",
    "exits": "_exit(0);",
    "writes to stdout": 'write(1, "NVML says hello\\n", 16); return 9;',
    "refuses": "return 9;",
}
SAID = {
    "hangs": "NVML did not answer within 1 s",
    "hangs and cannot be terminated": "NVML did not answer within 1 s",
    "aborts": "NVML ended the process that asked it, by SIGABRT",
    "crashes": "NVML ended the process that asked it, by SIGSEGV",
    "exits": "NVML gave no answer (status 0): without a word",
    "writes to stdout": "NVML gave no answer (status 0): without a word",
    "refuses": "",
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder for ``LD_LIBRARY_PATH`` that holds an NVML which does the given thing."""
    made: dict[str, str] = {}

    def make(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("driver")
            source = folder / "nvml.c"
            headers = "".join(f"#include <{name}.h>\n" for name in ("signal", "stdlib", "unistd"))
            source.write_text(f"{headers}int nvmlInit_v2(void) {{ {NVML[kind]} }}\n", encoding="utf-8")
            library = folder / "libnvidia-ml.so.1"
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
            made[kind] = str(folder)
        return made[kind]

    return make


def _driver_in_trouble():
    from portakernel.host import driver_query

    driver_query.query.__kwdefaults__["limit_s"] = 1.0
    began = time.monotonic()
    result = fakes.call()
    called = time.monotonic() - began
    import portakernel

    found = [str(device.target.vendor) for device in portakernel.targets()]
    asked = time.monotonic()
    again = [str(device.target.vendor) for device in portakernel.targets()]
    kept = time.monotonic() - asked < 0.5
    return {
        "result": [result, fakes.call()],
        "quick": called < 10,
        "found": ["cpu" in found, "nvidia" in found, found == again, kept],
        "faults": fakes.faults(),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="the loader is told of the library as Linux is")
@pytest.mark.parametrize("kind", NVML)
def test_an_nvml_in_trouble_costs_calls_nothing_and_is_one_fault_of_its_backend(fault, driver, kind):
    outcome = fault(_driver_in_trouble, env={"LD_LIBRARY_PATH": driver(kind)})
    assert outcome.status == 0, outcome.stderr
    said = f"portakernel_targets raised DriverError: {SAID[kind]}; run nvidia-smi, and restart the driver where that"
    faults = [["nvidia", "hook", f"{said} fails too"]] if SAID[kind] else []
    assert outcome.returned == {
        "result": [[3, 3, 3], [3, 3, 3]],
        "quick": True,
        "found": [True, False, True, True],
        "faults": faults,
    }


def _probed():
    """The backends whose devices were asked for, after a call, an explanation and a compiled graph on the CPU."""
    import torch

    import portakernel
    from portakernel import ops
    from portakernel.runtime import dispatcher

    result = fakes.call()
    portakernel.explain("add", torch.ones(3), torch.ones(3))
    portakernel.explain("add", target="nvidia:sm_90")
    compiled = torch.compile(ops.add, backend="eager")(torch.ones(3), torch.full((3,), 2.0)).tolist()
    attached = {b.name for b in dispatcher().registry.backends.values() if b.attach}
    return [result, compiled, sorted(set(dispatcher().registry._devices) - attached)]


def test_what_is_on_the_cpu_asks_no_other_vendor(fault):
    outcome = fault(_probed)
    assert outcome.returned == [[3, 3, 3], [3, 3, 3], ["cpu"]], outcome.stderr


HANGING = "schema_version: 1\nbackend: {0}\nvendor: {0}\ntorch_device: {0}\nopen_ended: true\n"


def _a_hanging_backend_of_another_device():
    source = fakes.HOOK.format("portakernel_targets()", "import threading; threading.Event().wait()")
    fakes.write("acme", backend=HANGING.format("acme"), source=source)
    began = time.monotonic()
    return [fakes.call(), time.monotonic() - began < 10, fakes.faults()]


def test_a_probe_that_hangs_is_not_asked_for_a_call_elsewhere(fault):
    assert fault(_a_hanging_backend_of_another_device, seconds=40).returned == [[3, 3, 3], True, []]


def _without(name):
    """A host that lacks a file, or gives another in its place, of what probes read."""
    from portakernel.host import regular_file

    read = regular_file.os.open

    def guarded(path, *rest, **named):
        if str(path).startswith(name):
            raise PermissionError(13, "Permission denied", path)
        return read(path, *rest, **named)

    regular_file.os.open = guarded
    import portakernel

    return [fakes.call(), "cpu" in [device.target.vendor for device in portakernel.targets()], fakes.faults()]


@pytest.mark.parametrize("name", ["/proc", "/sys"])
def test_a_host_whose_kernel_says_nothing_serves(fault, name):
    assert fault(_without, name).returned == [[3, 3, 3], True, []]


def _no_interpreter(text):
    """Python inside another program does not say where an interpreter is, or names that program."""
    sys.executable = text
    import portakernel

    found = [str(device.target.vendor) for device in portakernel.targets()]
    return [fakes.call(), "cpu" in found, [fault[0] for fault in fakes.faults()]]


@pytest.mark.parametrize("text", ["", "/bin/true", "/nowhere/python"])
def test_a_program_that_embeds_python_serves(fault, text):
    assert fault(_no_interpreter, text).returned == [[3, 3, 3], True, []]


def _the_parent_is_killed():
    """How long a script that asks a driver outlives who started it."""
    from portakernel_backends.nvidia import nvml

    command = [sys.executable, "-I", "-S", nvml.__file__, "0.5"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return child.wait(10)


def test_a_script_whose_driver_hangs_ends_itself(fault, driver):
    outcome = fault(_the_parent_is_killed, env={"LD_LIBRARY_PATH": driver("hangs")})
    assert outcome.returned == -14, outcome.stderr
