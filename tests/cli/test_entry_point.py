"""What only a process of its own shows: imports, exit statuses, pipes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = "import sys; from portakernel.cli import main; sys.exit(main())"
ASKED = ["explain", "rms_norm", "--target", "amd:gfx942", "--dtype", "bfloat16", "--shape", "x=4096x8192"]


def test_list_matrix_explain_with_target_and_validate_import_neither_torch_nor_triton_nor_rich() -> None:
    others = ["list", "list --json", "list --op nothing", "matrix", "matrix --json", "validate", "explain --help"]
    others += ["explain --all --target h100", "explain add --target a100 --target mi300x --json", "diff a.json b.json"]
    program = f"""
import sys
from portakernel.cli import main
for words in {[[*ASKED, "--json"], ASKED, *map(str.split, others)]!r}:
    main(words)
print(sorted({{"torch", "triton", "rich", "numpy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_exit_status_is_the_commands_own_and_output_is_plain() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *ASKED, "--json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["chosen"] == "triton.rms_norm"
    serving = ("torch", "triton", "hip", "liger", "conch", "reference")
    denied = [word for name in serving for word in ("--deny", name)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *ASKED, *denied], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    assert "\nNo kernel can serve it.\n" in done.stdout


@pytest.mark.parametrize("first", ["raise_signal(SIGINT)", "return 130"])
def test_who_was_interrupted_ends_with_130_however_often(first: str) -> None:
    """Ctrl-C is pressed twice, and a launcher sends it to a process and its group."""
    program = f"""
import sys
from signal import SIGINT, raise_signal
from portakernel import cli
def run(given):
    try:
        {first}
    finally:
        raise_signal(SIGINT)
cli._run = run
status = cli.main()
raise_signal(SIGINT)
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", program, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_what_a_command_ended_with_is_not_overturned_by_a_later_sigterm() -> None:
    program = "import signal, sys\nfrom portakernel import cli\ncli._run = lambda given: 130\n"
    program += "status = cli.main()\nsignal.raise_signal(signal.SIGTERM)\nsys.exit(status)"
    done = subprocess.run([sys.executable, "-c", program, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("command", ["list --json", "list", "explain add --target h100"])
def test_a_reader_that_stops_early_is_no_error_and_ends_as_shells_report_sigpipe(command: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141
