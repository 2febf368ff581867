"""What could not be read at a moment, for want of descriptors or for a network's fault, is asked again."""

from __future__ import annotations

import contextlib
import errno
import os
import resource

import fault_fakes as fakes
import pytest

RUN = "import torch\ndef run(x, y, *, out=None): return torch.add(x, y, out=out)\n"


@contextlib.contextmanager
def _exhausted():
    """Inside, the process can open nothing more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _attempt(call):
    try:
        return call()
    except OSError as error:
        return error.strerror or str(error)
    except BaseException as error:  # noqa: BLE001 - the test says what may come
        return f"{type(error).__name__}: {error}"


def _chosen():
    import torch

    import portakernel

    return str(portakernel.explain("add", torch.ones(3), torch.ones(3)).chosen.name)


def _first_call_without_descriptors(warm):
    fakes.write("acme", kernel="k", source=RUN)
    if warm:  # all that portakernel itself imports is imported
        import portakernel.api
        import portakernel.calling.public
        import portakernel.torch_bridge.registration  # noqa: F401
    with _exhausted():
        first = _attempt(fakes.call)
    return {"first": first, "then": fakes.call(), "chosen": _chosen(), "faults": fakes.faults()}


@pytest.mark.parametrize("warm", [False, True])
def test_a_first_call_without_descriptors_fails_and_the_next_is_whole(fault, warm):
    outcome = fault(_first_call_without_descriptors, warm, env={"PORTAKERNEL_PREFER": "acme"})
    assert outcome.status == 0, outcome.stderr
    first = outcome.returned.pop("first")
    assert first in ([3, 3, 3], "Too many open files", "the ops cannot be listed")
    assert outcome.returned == {"then": [3, 3, 3], "chosen": "acme.k", "faults": []}


def _fault_of_the_moment(code):
    """A kernel's module, its probe and its version each fail once with an error that passes."""
    source = f"""\
import os, torch
def fail_once(what):
    if what not in os.environ:
        os.environ[what] = "1"
        raise OSError({code}, os.strerror({code}))
fail_once("IMPORTED")
def ready(device):
    fail_once("PROBED")
def run(x, y, *, out=None): return torch.add(x, y, out=out)
"""
    fakes.write("acme", kernel="k", top="ready: fake_acme:ready\n", source=source)
    results = [fakes.call() for _ in range(3)]
    return {"results": results, "chosen": _chosen(), "faults": fakes.faults()}


PASSING = ["EMFILE", "ENFILE", "ENOMEM", "ESTALE", "EIO", "EAGAIN", "ETIMEDOUT"]


@pytest.mark.parametrize("name", PASSING)
def test_an_import_and_a_probe_that_failed_with_a_passing_error_are_made_again(fault, name):
    outcome = fault(_fault_of_the_moment, getattr(errno, name), env={"PORTAKERNEL_PREFER": "acme"})
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned == {"results": [[3, 3, 3]] * 3, "chosen": "acme.k", "faults": []}


def test_one_that_failed_for_good_is_not(fault):
    outcome = fault(_fault_of_the_moment, errno.ENODEV, env={"PORTAKERNEL_PREFER": "acme"})
    assert outcome.returned["chosen"] != "acme.k"
    assert [fault[0] for fault in outcome.returned["faults"]] == ["acme"]


def _version_without_descriptors():
    from portakernel.deciding.readiness import installed_version

    fakes.info("acme-2.5.dist-info")
    folder = fakes.write("acme", source="")
    assert folder.is_dir()
    with _exhausted():
        first = _attempt(lambda: installed_version("fake_acme", "acme"))
    return [first, installed_version("fake_acme", "acme")]


def test_a_version_that_could_not_be_looked_up_is_looked_up_again(fault):
    outcome = fault(_version_without_descriptors)
    assert outcome.returned == ["Too many open files", "2.5"], outcome.stderr


def _targets_without_descriptors():
    fakes.call()
    source = "import os\n" + fakes.HOOK.format(
        "portakernel_targets()",
        "os.close(os.open(os.devnull, os.O_RDONLY))\n    from portakernel.words.target import Device, Target\n"
        "    return [Device(Target('acme', 'a1'), 'Acme', 'acme:0')]",
    )
    backend = "schema_version: 1\nbackend: acme\nvendor: acme\ntorch_device: acme\nopen_ended: true\n"
    fakes.write("acme", backend=backend, source=source)
    from portakernel.deciding.dispatcher import Dispatcher

    now = Dispatcher()
    backend = now.registry.backends["acme"]
    now.registry.manager._module(backend.package)  # imported, and no more
    with _exhausted():
        first = [device.name for device in now.registry.devices_of(backend)]
    return [first, [device.name for device in now.registry.devices_of(backend)]]


def test_devices_that_could_not_be_probed_are_probed_again(fault):
    outcome = fault(_targets_without_descriptors)
    assert outcome.returned == [[], ["Acme"]], outcome.stderr
