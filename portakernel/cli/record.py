"""``portakernel record``: runs a program, and writes which kinds of calls it made, and how often."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from portakernel.cli.options import Json


def command(
    program: Annotated[list[str], typer.Argument(metavar="CMD...", help="The program and its arguments, after --.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write, in YAML.")],
    json: Json = False,
) -> None:
    """Run a program and write which kinds of calls it makes of portakernel's ops: dtypes, shapes, layouts, counts.

    Calls of portakernel.ops are seen, in all threads, and in the processes that the program starts; not those in graphs
    that torch.compile has made. warmup, bench and tune read the file with --calls.

    With --json what the program itself prints goes to stderr. Exits with the program's own status, 130 when
    interrupted, 2 when the program cannot be started.

    For example:

        portakernel record -o service.yaml -- python serve.py --once
        portakernel tune --calls service.yaml --budget 10m
    """
    from portakernel.cli.calls_file import load_calls
    from portakernel.cli.output import page, print_json
    from portakernel.errors import ArgumentValueError

    file = Path(os.path.abspath(output))
    if file.is_dir():
        raise ArgumentValueError(f"record: {output} is a folder; give the file to write, such as -o service.yaml")
    made = Path(f"{file}.recording")  # what is there stays until there is another
    made.unlink(missing_ok=True)
    try:
        shown = sys.stderr if json else None
        running = subprocess.Popen(program, stdout=shown, env={**os.environ, "PORTAKERNEL_RECORD": str(made)})
    except OSError as error:
        text = (
            f"{program[0]} cannot be started: {error.strerror}; give a program after `--`, such as `-- python serve.py`"
        )
        raise ArgumentValueError(f"record: {text}") from error
    with running:
        try:
            status = running.wait()
        except KeyboardInterrupt:  # the program has it too, and may write at its end
            status = running.wait()
            status = status or 130
    Path(f"{made}.lock").unlink(missing_ok=True)
    calls = load_calls(made) if made.exists() else []
    if calls:
        made.replace(file)
    if json:
        told = {"file": str(file) if calls else None, "kinds": len(calls), "calls": sum(call.count for call in calls)}
        print_json({**told, "status": status})
    elif calls:
        page().line(f"{len(calls)} kinds of {sum(call.count for call in calls)} calls are in {output}")
    else:
        text = "the program recorded no call of portakernel.ops: it made none, could not write, or was killed"
        page().line(f"{text}; {output} is not written", "doubt")
    raise typer.Exit(status if status >= 0 else 128 - status)
