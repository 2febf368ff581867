"""Nothing that strangers write reaches a terminal raw: what steers it, what hides text, or a line of their own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import unicodedata
import warnings

import pytest

# A colour, a title, a bidirectional override, a line of one's own, a carriage return, a C1 introducer, zero widths.
EVIL = "\x1b[2J\x1b]0;owned\x07\u202egnp\u2066x\nportakernel: all is well\r\x9b31m\u200b\u2028end"
MANIFEST = """\
schema_version: 1
plugin: evil
{more}
kernels:
  - op: add
    entry: evil:add
    targets: {{cpu: any, nvidia: any, amd: any}}
    dtypes: {{x: [float32], y: [x]}}
"""
HOOKS = "from portakernel.hookspecs import hookimpl\n"
KERNEL = "\ndef add(x, y, *, alpha=1.0, out=None):\n    return x + alpha * y\n"
QUOTED = '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in EVIL) + '"'


def _device_hook(text):
    return f"""
from portakernel.words.target import Device, Target
@hookimpl
def portakernel_targets():
    return [Device(Target("evil", "evil_1"), {text!r}, None, uuid={text!r}, driver={text!r}, note={text!r})]
"""


BACKEND = "schema_version: 1\nbackend: evil\nvendor: evil\ntorch_device: evil\nopen_ended: true\n"
# What is hostile of an installed package: (files, name, version, its entry point).
PACKAGES = {
    "a summary": ({"plugin.yaml": MANIFEST.format(more=f"summary: {QUOTED}")}, "evil", "1.0", "evil"),
    "an unknown key": ({"plugin.yaml": MANIFEST.format(more=f"{QUOTED}: 1")}, "evil", "1.0", "evil"),
    "an unknown key of a newer schema": (
        {"plugin.yaml": MANIFEST.format(more=f"{QUOTED}: 1").replace("version: 1", "version: 9")},
        "evil", "1.0", "evil",
    ),
    "an op": ({"plugin.yaml": MANIFEST.format(more="").replace("op: add", f"op: {QUOTED}")}, "evil", "1.0", "evil"),
    "a vendor": ({"plugin.yaml": MANIFEST.format(more="").replace("cpu:", f"{QUOTED}:")}, "evil", "1.0", "evil"),
    "a reason for being disabled": (
        {"plugin.yaml": MANIFEST.format(more="") + f"    disabled: {QUOTED}\n"}, "evil", "1.0", "evil"
    ),
    "a module that it requires": (
        {"plugin.yaml": MANIFEST.format(more=f"requires: {{modules: {{{QUOTED}: '>=1'}}}}")}, "evil", "1.0", "evil"
    ),
    "lines in a reason": (
        {"plugin.yaml": MANIFEST.format(more="") + '    disabled: "a\\nportakernel: all is well"\n'},
        "evil", "1.0", "evil",
    ),
    "raw bytes in a manifest": (
        {"plugin.yaml": MANIFEST.format(more="summary: a\x1b[31m\u202e")}, "evil", "1.0", "evil"
    ),
    "a distribution's name": ({"plugin.yaml": MANIFEST.format(more="bad: 1")}, EVIL.replace("\n", ""), "1.0", "evil"),
    "a version": ({"plugin.yaml": MANIFEST.format(more="bad: 1")}, "evil", "1.0\x1b[2J\u202e", "evil"),
    "an entry point's module": ({"plugin.yaml": MANIFEST.format(more="")}, "evil", "1.0", "evil\x1b[2J\u202e"),
    "an exception at import": (
        {"plugin.yaml": MANIFEST.format(more="hooks: [portakernel_kernels]"),
         "__init__.py": f"raise OSError({EVIL!r})"},
        "evil", "1.0", "evil",
    ),
    "an exception's name": (
        {"plugin.yaml": MANIFEST.format(more="hooks: [portakernel_kernels]"),
         "__init__.py": f"raise type({EVIL!r}, (Exception,), {{}})({EVIL!r})"},
        "evil", "1.0", "evil",
    ),
    "an exception in a hook": (
        {"plugin.yaml": MANIFEST.format(more="hooks: [portakernel_kernels]"),
         "__init__.py": f"{HOOKS}@hookimpl\ndef portakernel_kernels():\n    raise ValueError({EVIL!r})\n"},
        "evil", "1.0", "evil",
    ),
    "what a hook returns": (
        {"plugin.yaml": MANIFEST.format(more="hooks: [portakernel_kernels]"),
         "__init__.py": f"{HOOKS}@hookimpl\ndef portakernel_kernels():\n    return [{{{EVIL!r}: {EVIL!r}}}]\n"},
        "evil", "1.0", "evil",
    ),
    "a probe's rejection": (
        {"plugin.yaml": MANIFEST.format(more="ready: evil:ready"),
         "__init__.py": "from portakernel.claims.capability import ReasonCode, Rejection\ndef ready(device):\n"
         f"    return Rejection(ReasonCode.DRIVER, {EVIL!r}, {EVIL!r})\n{KERNEL}"},
        "evil", "1.0", "evil",
    ),
    "a probe's note": (
        {"plugin.yaml": MANIFEST.format(more="ready: evil:ready"),
         "__init__.py": "from portakernel.deciding.readiness import Usable\ndef ready(device):\n"
         f"    return Usable([{EVIL!r}])\n{KERNEL}"},
        "evil", "1.0", "evil",
    ),
    "a code of its own": (
        {"plugin.yaml": MANIFEST.format(more="ready: evil:ready"),
         "__init__.py": "from portakernel.claims.capability import Rejection\ndef ready(device):\n"
         f"    return Rejection({EVIL!r}, 'no')\n{KERNEL}"},
        "evil", "1.0", "evil",
    ),
    "a device": ({"backend.yaml": BACKEND, "__init__.py": HOOKS + _device_hook(EVIL)}, "evil", "1.0", "evil"),
    "a warning at import": (
        {"plugin.yaml": MANIFEST.format(more="hooks: [portakernel_kernels]"),
         "__init__.py": f"import warnings\nwarnings.warn({EVIL.replace(chr(10), '')!r}, stacklevel=1)\n{HOOKS}"
         "@hookimpl\ndef portakernel_kernels():\n    return []\n" + KERNEL},
        "evil", "1.0", "evil",
    ),
}  # fmt: skip
COMMANDS = ("list", "doctor", "explain add --target cpu:x86_64", "validate", "matrix --op add")


def _run_commands(folder, commands, interpreter):
    from portakernel.cli import main

    sys.executable = interpreter  # which `validate` starts to import contracts, of other packages here
    sys.path.insert(0, folder)
    for command in commands:
        main(command if isinstance(command, list) else command.split())


def _call(folder):
    """The reasons, warnings and errors of calls beside the package, as Python shows them."""
    import torch

    import portakernel
    from portakernel import ops
    from portakernel.runtime import dispatcher

    sys.path.insert(0, folder)
    logging.basicConfig(level=logging.DEBUG)
    warnings.simplefilter("always")
    x = torch.ones(4)
    print(portakernel.explain("add", x, x))
    for kernel in ("evil", "evil.add", EVIL):
        try:
            ops.add(x, x, kernel=kernel)
        except portakernel.errors.PortakernelError as error:
            print(error)
    if "evil.add" in dispatcher().registry.kernels:
        with portakernel.policy(prefer=["evil.add"]):
            ops.add(x, x)
    print(*portakernel.stats(), *portakernel.plugins(), sep="\n")


def _raw(outcome):
    """What a terminal would obey or hide, and the strangers' own lines."""
    text = outcome.stdout + outcome.stderr
    unshown = {c for c in text if c not in "\n\t" and unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    return sorted(map(ascii, unshown)), [line for line in text.splitlines() if line.startswith("portakernel: all is")]


@pytest.fixture(scope="module")
def forked(forked_interpreter, imported_first):
    return str(forked_interpreter(imported_first))


@pytest.fixture
def install(tmp_path):
    """Puts a hostile package where a process finds it that has this folder on its path."""

    def write(what):
        files, name, version, module = PACKAGES[what]
        (tmp_path / "evil").mkdir()
        for file, text in {"__init__.py": KERNEL, **files}.items():
            (tmp_path / "evil" / file).write_text(text, encoding="utf-8")
        info = tmp_path / "evil-1.0.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[portakernel]\nevil = {module}\n", encoding="utf-8")
        return str(tmp_path)

    return write


@pytest.mark.turns(2)
@pytest.mark.parametrize("what", PACKAGES)
def test_no_command_sends_raw_what_a_package_says(fault, install, forked, what):
    outcome = fault(_run_commands, install(what), COMMANDS, forked)
    assert outcome.status == 0, outcome.stderr
    assert "evil" in outcome.stdout
    assert _raw(outcome) == ([], [])


# a warning that a plugin gives by itself is between Python and the program
@pytest.mark.turns(2)
@pytest.mark.parametrize("what", [what for what in PACKAGES if what != "a warning at import"])
def test_no_call_sends_raw_what_a_package_says(fault, install, what):
    outcome = fault(_call, install(what))
    assert outcome.status == 0, outcome.stderr
    assert _raw(outcome) == ([], [])


ASKED = {
    "an op": ["explain", EVIL],
    "a target": ["explain", "add", "--target", EVIL],
    "a vendor's arch": ["explain", "add", "--target", f"nvidia:{EVIL}"],
    "a dtype": ["explain", "add", "--dtype", EVIL],
    "a shape": ["explain", "add", "--shape", EVIL],
    "a feature": ["explain", "attention", "--feature", f"softcap={EVIL}"],
    "an option": ["list", f"--{EVIL}"],
    "a command": [EVIL],
    "a file": ["validate", EVIL.replace("/", "")],
    "a plugin": ["list", "--plugin", EVIL],
}


@pytest.mark.parametrize("what", ASKED)
def test_what_somebody_asks_for_is_quoted_not_obeyed(fault, install, forked, what):
    outcome = fault(_run_commands, install("a device"), [ASKED[what]], forked)
    assert outcome.stderr + outcome.stdout != ""
    assert _raw(outcome)[0] == []


VARIABLES = {
    "use": {"PORTAKERNEL_USE": EVIL},
    "deny": {"PORTAKERNEL_DENY": EVIL},
    "log": {"PORTAKERNEL_LOG": EVIL},
    "policy": {"PORTAKERNEL_POLICY": EVIL},
    "a variable's name": {f"PORTAKERNEL_{EVIL}": "1"},
}


@pytest.mark.parametrize("what", VARIABLES)
def test_what_a_variable_says_is_quoted_not_obeyed(fault, install, forked, what):
    for command in (["list"], ["doctor"], ["explain", "add", "--target", "cpu:x86_64"]):
        outcome = fault(_run_commands, ".", [command], forked, env=VARIABLES[what])
        assert _raw(outcome) == ([], []), command


def test_a_policy_files_text_and_name_are_quoted_not_obeyed(fault, forked, tmp_path):
    file = tmp_path / "policy\x1b[2J\u202e.yaml"
    for text in (f"use: [{QUOTED}]", f"{QUOTED}: 1", "use: \x1b[2J", f"ops: {{{QUOTED}: {{use: [triton]}}}}"):
        file.write_text(f"schema_version: 1\n{text}\n", encoding="utf-8")
        for command in (["list"], ["explain", "add", "--target", "cpu:x86_64"], ["validate", "--policy", str(file)]):
            outcome = fault(_run_commands, ".", [command], forked, env={"PORTAKERNEL_POLICY": str(file)})
            assert _raw(outcome) == ([], []), (text, command)


def test_a_bug_in_a_strangers_command_keeps_a_printable_traceback(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        f"import portakernel.cli.list_kernels as m\ndef command(): raise ValueError({EVIL!r})\nm.command = command\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "portakernel", "list"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "ValueError: \\x1b[2J" in ran.stderr
    assert "\x1b" not in ran.stderr
