"""``portakernel record``: where the file cannot be, how it ends by a signal, what its last line says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portakernel.cli.calls_file import load_calls
from portakernel.config import Config
from portakernel.errors import ConfigError

SERVICE = """
import sys, torch
from portakernel import ops
if {calls}:
    ops.softmax(torch.randn(4, 64))
print("ready", flush=True)
for line in sys.stdin:
    pass
"""
RECORD = (sys.executable, "-m", "portakernel", "record", "-o", "calls.yaml")


@pytest.fixture
def record(forked_interpreter: Callable[..., Path], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Records a program: ``record(program)``, both forked from a process that has imported torch."""

    def run(program: str) -> subprocess.CompletedProcess[str]:
        python = forked_interpreter()
        command = [python, *RECORD[1:], "--", python, "-c", program]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    return run


@pytest.mark.parametrize(("number", "calls"), [(signal.SIGTERM, True), (signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_program_that_is_ended_is_told_so_and_what_it_recorded_is_written(
    tmp_path: Path, number: signal.Signals, calls: bool
) -> None:
    """The signal is sent to the command alone, which no terminal has."""
    command = [*RECORD, "--json", "--", sys.executable, "-c", SERVICE.format(calls=calls)]
    pipe = subprocess.PIPE
    streams: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "text": True, "start_new_session": True}
    with subprocess.Popen(command, cwd=tmp_path, **streams) as running:
        assert running.stderr is not None
        while running.stderr.readline() != "ready\n":
            assert running.poll() is None
        running.send_signal(number)
        running.wait(timeout=120)  # its input stays open until then
        out, _ = running.communicate()
    status = 128 + number
    assert running.returncode == status
    told = json.loads(out)
    assert (told["kinds"], told["calls"], told["status"]) == ((1, 1, status) if calls else (0, 0, status))
    assert [path.name for path in tmp_path.iterdir()] == (["calls.yaml"] if calls else [])


def test_a_program_s_own_answer_to_the_signal_is_its_status(tmp_path: Path) -> None:
    program = "import os, signal, sys, torch\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    program += "from portakernel import ops\nops.softmax(torch.randn(4, 64))\n"
    program += "os.kill(os.getppid(), signal.SIGTERM)\nsignal.pause()"  # a forked one's parent is not its command
    command = [*RECORD, "--", sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 7, ran.stderr
    assert ran.stdout == "1 kind of 1 call is in calls.yaml\n"


def test_where_the_file_cannot_be_nothing_runs(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    program = ("--", sys.executable, "-c", f"open({str(ran)!r}, 'w')")
    found = run("record", "-o", str(tmp_path), *program)
    assert found.status == 2
    assert f"record: {tmp_path} is a folder; give the file to write" in found.err
    found = run("record", "-o", "", *program)
    assert found.status == 2
    assert "record: -o is empty; give the file to write, such as -o service.yaml" in found.err
    found = run("record", "-o", "/dev/full", *program)
    assert found.status == 2
    assert "record: /dev/full is no regular file, but a device, a pipe or a socket; give one" in found.err
    found = run("record", "-o", str(tmp_path / "gone" / "calls.yaml"), *program)
    assert found.status == 2
    assert f"cannot be written: there is no folder {tmp_path / 'gone'}; make it, or give another file" in found.err

    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("portakernel.host.output_file.tempfile.TemporaryFile", refuse)
    found = run("record", "-o", str(tmp_path / "calls.yaml"), *program)
    assert found.status == 2
    assert (
        f"cannot be written: no file can be made in {tmp_path} (Read-only file system); give one in another folder"
    ) in found.err
    assert not ran.exists()


def test_the_variable_names_a_file_that_can_be(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"PORTAKERNEL_RECORD is '.*', which is a folder; give the file to write.*unset"
    ):
        Config.from_environment({"PORTAKERNEL_RECORD": str(tmp_path)})
    with pytest.raises(ConfigError, match="which is no regular file, but a device"):  # to read /dev/full never ends
        Config.from_environment({"PORTAKERNEL_RECORD": "/dev/full"})
    file = str(tmp_path / "calls.yaml")
    assert Config.from_environment({"PORTAKERNEL_RECORD": file}).record == file
    assert os.listdir(tmp_path) == []


def test_a_link_stays_and_what_it_names_is_written(
    record: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "real.yaml").write_text("# mine\n")
    (tmp_path / "calls.yaml").symlink_to("real.yaml")
    program = "import torch\nfrom portakernel import ops\nops.softmax(torch.randn(4, 64))"
    ran = record(program)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "calls.yaml").is_symlink()
    assert "op: softmax" in (tmp_path / "real.yaml").read_text()


def test_a_file_that_the_variable_names_has_the_calls_too_and_one_that_is_no_recording_stays(
    record: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "all.yaml"
    monkeypatch.setenv("PORTAKERNEL_RECORD", str(outer))
    program = "import torch\nfrom portakernel import ops\nops.softmax(torch.randn(4, 64))"
    outer.write_text("calls:\n  - {op: softmax, dtype: {x: float32}, shape: {x: [4, 64]}, count: 6}\n")
    ran = record(program)
    assert ran.returncode == 0, ran.stderr
    assert [call.count for call in load_calls(outer)] == [7]
    assert [call.count for call in load_calls(tmp_path / "calls.yaml")] == [1]
    outer.write_text("services: {port: 80}\n")
    ran = record(program)
    assert ran.returncode == 2
    assert "all.yaml lists no calls, and a recording adds to what is there: name another file" in ran.stderr
    assert outer.read_text() == "services: {port: 80}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.yaml", "calls.yaml"]


def test_what_graphs_dissolve_is_said(record: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    program = "import torch\nfrom portakernel import ops\nx = torch.randn(4, 64)\n"
    program += "torch.compile(lambda x: ops.rms_norm(x, x[0]), backend='eager')(x)\nops.softmax(x)"
    ran = record(program)
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()
    assert first == "2 kinds of 2 calls are in calls.yaml"
    assert second.startswith("rms_norm: torch.compile has traced calls of these; those that its graphs keep whole are")
