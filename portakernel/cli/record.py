"""``portakernel record``: runs a program, and writes which kinds of calls it made, and how often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TextIO

import typer

from portakernel.cli.options import Json


def command(
    program: Annotated[list[str], typer.Argument(metavar="CMD...", help="The program and its arguments, after --.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The file to write, in YAML.")],
    json: Json = False,
) -> None:
    """Run a program and write which kinds of calls it makes of portakernel's ops: dtypes, shapes, layouts, counts.

    Calls of portakernel.ops, of bound handles, and those that a graph of torch.compile keeps whole are seen, in all
    threads, and in the processes that the program starts; not what a graph dissolves, nor replays of captured graphs.
    warmup, bench and tune read the file with --calls.

    With --json what the program itself prints goes to stderr. SIGTERM is passed on to the program, SIGINT where it does
    not come from the terminal, which tells both; what was recorded until then is written. FILE is replaced; where
    PORTAKERNEL_RECORD names a file, the calls are added to that too. Exits with the program's own status, 130 when
    interrupted, 143 when SIGTERM ended it, 2 when the program cannot be started or the file cannot be written.

    For example:

        portakernel record -o service.yaml -- python serve.py --once
        portakernel tune --calls service.yaml --budget 10m
    """
    from portakernel.cli.output import page, print_json
    from portakernel.config import Config
    from portakernel.errors import ArgumentValueError
    from portakernel.host.output_file import obstacle
    from portakernel.host.recording_file import add, counted, put

    if not output:
        raise ArgumentValueError("record: -o is empty; give the file to write, such as -o service.yaml")
    outer = Config.from_environment().record
    if outer is not None:
        counted(Path(outer))  # what is no recording is refused before anything runs
    file = Path(os.path.realpath(output))  # a link stays, and what it names is written
    if why := obstacle(file):
        raise ArgumentValueError(f"record: {output} {why}")
    made = Path(f"{file}.recording")  # what is there stays until there is another
    made.unlink(missing_ok=True)
    status = _run(program, {**os.environ, "PORTAKERNEL_RECORD": str(made)}, sys.stderr if json else None)
    counts, ops = counted(made)
    kinds, calls, traced = len(counts), counts.total(), sorted(ops)
    if outer is not None and (counts or ops):
        add(Path(outer), counts, ops)
    if kinds:
        put(file, counts, ops)
    made.unlink(missing_ok=True)
    if json:
        print_json(
            {"file": str(file) if kinds else None, "kinds": kinds, "calls": calls, "traced": traced, "status": status}
        )
        raise typer.Exit(status)
    if kinds:
        each, verb = ("kind" if kinds == 1 else "kinds"), ("is" if kinds == 1 else "are")
        page().line(f"{kinds} {each} of {calls} {'call' if calls == 1 else 'calls'} {verb} in {output}")
    else:
        text = "the program recorded no call of portakernel.ops: it made none, could not write, or was killed"
        page().line(f"{text}; {output} is not written", "doubt")
    if traced:
        text = f"{', '.join(traced)}: torch.compile has traced calls of these; those that its graphs keep whole are"
        page().line(f"{text} counted, those that they dissolve are not, and no plan speaks of them", "doubt")
    raise typer.Exit(status)


def _run(program: Sequence[str], environment: Mapping[str, str], stdout: TextIO | None) -> int:
    """The status of the program, once it has ended; SIGTERM is passed on to it, and SIGINT that is not its already.

    Raises:
        ArgumentValueError: it cannot be started.
    """
    from portakernel.errors import ArgumentValueError

    running: list[subprocess.Popen[bytes]] = []
    ended: list[int] = []

    def pass_on(number: int, _: object) -> None:
        ended.append(number)
        for child in running:
            child.send_signal(number)

    in_main = threading.current_thread() is threading.main_thread()
    passed = [signal.SIGTERM] if in_main else []
    if in_main and not _reads_the_terminal() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        passed.append(signal.SIGINT)
    before = {number: signal.signal(number, pass_on) for number in passed}
    try:
        try:
            running.append(subprocess.Popen(program, stdout=stdout, env=environment))
        except OSError as error:
            text = f"{program[0]} cannot be started: {error.strerror}; give a program after `--`"
            raise ArgumentValueError(f"record: {text}, such as `-- python serve.py`") from error
        if ended:  # it came while the program was started
            running[0].send_signal(ended[-1])
        with running[0] as child:
            try:
                status = child.wait()
            except KeyboardInterrupt:  # the program has it too, and may write at its end
                status = child.wait() or 130
            if signal.SIGINT in ended:
                status = status or 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _reads_the_terminal() -> bool:
    """Whether this is what a terminal's user interrupts: then the program, which is of the same group, has it too."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except (OSError, AttributeError):  # no terminal, or no such groups
        return False
