"""The command line: ``portakernel list | doctor | explain | validate | check | demo``.

To add a command, write a module with a function ``command`` whose docstring is its help, and list it in ``COMMANDS``;
a plugin adds one with the hook ``portakernel_cli``. Commands import what they need when they run, so that those that
answer from manifests alone load neither torch nor rich.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.output import json_error, printable
from portakernel.errors import PortakernelError

if TYPE_CHECKING:
    from portakernel.plugin_manager import PluginManager

COMMANDS: tuple[str, ...] = ("list", "doctor", "explain", "validate", "check", "demo")

FAILED = 1  # the answer is no: no kernel serves, a manifest has problems, a check fails
BAD_INPUT = 2  # what was asked cannot be answered
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status.

    Errors that portakernel raises on purpose become a message on stderr (with ``--json`` an object on stdout) and
    status 2. Anything else is a bug and keeps its traceback.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal or file that cannot hold “×” gets \xd7, not a traceback
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            status = _run(given)
        except PortakernelError as error:
            status = _fail(given, type(error).__name__, str(error))
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        return _flushed(status)


def make_app(manager: PluginManager | None = None) -> typer.Typer:
    """The app with the core's commands and, given a manager, those that plugins add."""
    # Without markup, rich is not imported for help and usage errors.
    app = typer.Typer(
        name="portakernel", add_completion=False, no_args_is_help=True, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )  # fmt: skip
    app.callback()(_options)
    if manager is not None:
        manager.call("portakernel_cli", app=app)
        _keep_first(app)
    for name in COMMANDS:
        app.command(name)(importlib.import_module(f"portakernel.cli.{name}").command)
    return app


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print portakernel's version.", is_eager=True)] = False,
) -> None:
    """Which GPU kernel runs where, and why.

    Examples:

    \b
        portakernel doctor
        portakernel explain rms_norm --target amd:gfx942 --dtype bfloat16 --shape x=4096x8192
    """
    del version  # main answers it, since without a command there is nothing else to run


def _run(arguments: Sequence[str]) -> int:
    if "--version" in arguments[:1]:
        from portakernel import __version__

        print(f"portakernel {__version__}")
        return 0
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    app = make_app() if named in COMMANDS else make_app(_manager())
    try:
        status = typer.main.get_command(app).main(arguments, prog_name="portakernel", standalone_mode=False)
    except Exception as error:
        # click's usage errors, whose class has a different home in each version of typer
        if not hasattr(error, "format_message"):
            raise
        context: Any = getattr(error, "ctx", None)
        usage = f"{context.get_usage()}\n" if context is not None and "--json" not in arguments else ""
        return _fail(arguments, "UsageError", f"{usage}{getattr(error, 'format_message')()}")
    return status if isinstance(status, int) else 0


def _manager() -> PluginManager | None:
    """The installed plugins; None where the environment is at fault, which a command then says."""
    from portakernel.runtime import dispatcher

    try:
        return dispatcher().registry.manager
    except PortakernelError:
        return None


def _keep_first(app: typer.Typer) -> None:
    """Drops plugins' commands whose names are taken, saying so."""
    taken = set(COMMANDS)
    for registered in (app.registered_commands, app.registered_groups):
        for added in list(registered):
            callback = getattr(added, "callback", None)
            name = added.name or (callback.__name__.replace("_", "-") if callback else "")
            if name in taken:
                registered.remove(added)  # type: ignore[arg-type]
                where = getattr(callback, "__module__", "a plugin")
                print(f"portakernel: the command {name!r} of {where} is left out: the name is taken", file=sys.stderr)
            taken.add(name)


def _fail(arguments: Sequence[str], kind: str, message: str) -> int:
    if "--json" in arguments:
        print(json_error(kind, message))
    else:
        print(f"portakernel: {printable(message)}", file=sys.stderr)
    return BAD_INPUT


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    print(f"portakernel: {category.__name__}: {message}", file=sys.stderr)


def _flushed(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # `portakernel list | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return status
