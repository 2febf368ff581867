"""What a program reads from a command with ``--json`` is the answer, whatever libraries write to descriptor 1."""

from __future__ import annotations

import json
import os

import pytest

# Each writes when a command that answers in JSON meets it: past Python's own stream, as libraries in C do.
NOISE = {
    "at import": """
import os
os.write(1, b"NOISE")
""",
    "in a hook": """
import os
def noise():
    os.write(1, b"NOISE")
""",
    "at exit": """
import atexit, os
atexit.register(os.write, 1, b"NOISE")
""",
    "in a child": """
import subprocess
subprocess.run(["sh", "-c", "printf NOISE"], check=True)
""",
    "in a child that outlives the command": """
import subprocess
subprocess.Popen(["sh", "-c", "sleep 1; printf NOISE"])
""",
    "in a forked child": """
import os
if os.fork() == 0:
    os.write(1, b"NOISE")
    os._exit(0)
os.wait()
""",
    "through C's buffer, at exit": """
import ctypes
ctypes.CDLL(None).printf(b"NOISE")
""",
    "from a thread": """
import os, threading
thread = threading.Thread(target=os.write, args=(1, b"NOISE"))
thread.start()
thread.join()
""",
    "through Python's own stream": """
import sys
sys.__stdout__.write("NOISE")
sys.stdout.write("NOISE")
""",
}
COMMANDS = (
    "list", "matrix --op add", "doctor", "explain add --target nvidia:sm_90", "validate noisy/plugin.yaml --imports",
    "check --plugin noisy --budget 1s", "lint --plugin noisy", "compile --plugin noisy --target amd:gfx942",
    "build --plugin noisy --target amd:gfx942", "warmup add --tensor x=4", "cache list",
    "bench add --kernel noisy.add --shape x=4x64 --seconds 0",
)  # fmt: skip
MANIFEST = """\
schema_version: 1
plugin: noisy
hooks: [portakernel_kernels]
kernels:
  - op: add
    entry: noisy:add
    targets: {cpu: any, nvidia: any, amd: any}
    dtypes: {x: [float32], y: [float32]}
"""
CODE = """
from portakernel.hookspecs import hookimpl

@hookimpl
def portakernel_kernels():
    globals().get("noise", int)()
    return []

def add(x, y, *, alpha=1.0, out=None):
    return x + alpha * y
"""


@pytest.fixture
def noisy(python, imported_first, tmp_path):
    """Installs a plugin with this source, and runs a command beside it as a program."""

    def run(source, command):
        folder = tmp_path / "noisy"
        folder.mkdir()
        (folder / "plugin.yaml").write_text(MANIFEST)
        (folder / "__init__.py").write_text(source + CODE)
        info = tmp_path / "noisy-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[portakernel]\nnoisy = noisy\n")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
        environment |= {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
        words = "-m", "portakernel", *command.split(), "--json"
        return python(*words, cwd=tmp_path, env=environment, timeout=120, imports=imported_first, forks=True)

    return run


@pytest.mark.parametrize("when", NOISE)
def test_what_is_written_to_descriptor_1_is_no_part_of_the_answer(noisy, when):
    ran = noisy(NOISE[when], "list")
    assert "noisy.add" in [kernel["kernel"] for kernel in json.loads(ran.stdout)["kernels"]]
    assert "NOISE" in ran.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_every_command_answers_alone(noisy, command):
    ran = noisy(NOISE["at import"] + NOISE["at exit"], command)
    assert isinstance(json.loads(ran.stdout), dict), ran.stderr
    assert "NOISE" not in ran.stdout


def test_an_error_is_an_answer_too(noisy):
    ran = noisy(NOISE["at exit"], "explain ad")
    assert json.loads(ran.stdout)["error"]["type"] == "UnknownNameError"
    assert ran.returncode == 2
