"""The command line: ``portakernel list``, ``explain``, ``check`` and the others of ``COMMANDS``.

To add a command, write a module with a function ``command`` whose docstring is its help, and list it in ``COMMANDS``;
one that needs several modules has a folder, and its function in ``command.py`` there. One that consists of commands has
them in ``ACTIONS`` beside it, by name. Those of authors stand in the kit
(``kit/portakernel_kit``). A plugin adds one with the hook ``portakernel_cli``. Commands import what they need when they
run, so that those that answer from manifests alone load neither torch nor rich.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import inspect
import io
import os
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from portakernel.cli.output import answers, answers_alone, print_json_error
from portakernel.errors import PortakernelError
from portakernel.text.printable import one_line, printable

if TYPE_CHECKING:
    from portakernel.registry.plugin_manager import PluginManager

# The module of each command, by the command's name; a module called `list` would hide the builtin in here.
COMMANDS: Mapping[str, str] = {
    "list": "portakernel.cli.list_kernels",
    "matrix": "portakernel.cli.matrix",
    "doctor": "portakernel.cli.doctor.command",
    "explain": "portakernel.cli.explain.command",
    "diff": "portakernel.cli.diff",
    "new": "portakernel_kit.cli.new",
    "validate": "portakernel_kit.cli.validate.command",
    "check": "portakernel_kit.cli.check.command",
    "lint": "portakernel_kit.cli.lint.command",
    "faults": "portakernel_kit.cli.faults.command",
    "compile": "portakernel_kit.cli.compile_kernels",
    "run": "portakernel_kit.cli.run.command",
    "build": "portakernel.cli.build",
    "warmup": "portakernel.cli.warmup",
    "bench": "portakernel_kit.cli.bench.command",
    "record": "portakernel.cli.record",
    "tune": "portakernel_kit.cli.tune",
    "regret": "portakernel_kit.cli.regret",
    "plan": "portakernel.cli.plan.command",
    "cache": "portakernel.cli.cache",
    "report": "portakernel.cli.report.command",
    "demo": "portakernel_kit.demo.command",
}

BAD_INPUT = 2  # what was asked cannot be answered
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
PIPE_CLOSED = 141  # 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status.

    Errors that portakernel raises on purpose become a message on stderr (with ``--json`` an object on stdout) and
    status 2. Anything else is a bug and keeps its traceback.
    """
    as_a_program = arguments is None
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal or file that cannot hold “×” gets \xd7, not a traceback
            stream.reconfigure(errors="backslashreplace")
    if as_a_program:
        sys.excepthook = _show_exception
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
    # a program reads the answer: what plugins print is none of it
    wanted = "--json" in given and _named(given) in COMMANDS
    alone = answers_alone(to_the_end=as_a_program) if wanted else contextlib.nullcontext()
    with alone, warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            status = _run(given)
            if as_a_program and status == INTERRUPTED:
                _end_undisturbed()
        except PortakernelError as error:
            status = _fail(given, type(error).__name__, str(error))
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            status = _unwritable(error)
        return _flushed(status)


def make_app(names: Iterable[str] = COMMANDS, manager: PluginManager | None = None) -> typer.Typer:
    """The app with the core's commands of these names and, given a manager, those that plugins add."""
    # Without markup, rich is not imported for help and usage errors.
    app = typer.Typer(
        name="portakernel", add_completion=False, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )  # fmt: skip
    app.callback(help=_help(_options))(_options)
    if manager is not None:
        manager.call("portakernel_cli", app=app)
        _keep_first(app)
    for name in names:
        module = importlib.import_module(COMMANDS[name])
        if actions := getattr(module, "ACTIONS", None):
            several = typer.Typer(rich_markup_mode=None)
            for action, command in actions.items():
                _add(several, action, command)
            text = _help(module.command)
            app.add_typer(several, name=name, help=text, short_help=text.partition("\n")[0])
        else:
            _add(app, name, module.command)
    return app


def _add(app: typer.Typer, name: str, command: Callable[..., Any]) -> None:
    app.command(name, cls=_Once, help=_help(command), short_help=_help(command).partition("\n")[0])(command)


class _Once(typer.core.TyperCommand):
    """A command that refuses an option of one value given twice: the last one would win, and nobody would know."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click does, once each option that takes one value has been looked at."""
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(order).items():
            takes_one = isinstance(option, typer.core.TyperOption) and not (
                option.is_flag or option.multiple or option.count
            )
            if takes_one and times > 1:
                ctx.fail(f"{option.opts[0]} is given {times} times and takes one value: run the command for each")
        return super().parse_args(ctx, args)


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print portakernel's version.", is_eager=True)] = False,
) -> None:
    """Which GPU kernel runs where, and why.

    For example:

        portakernel doctor
        portakernel explain rms_norm --target amd:gfx942 --dtype bfloat16 --shape x=4096x8192
    """
    del version  # main answers it, since without a command there is nothing else to run


def _help(command: Callable[..., object]) -> str:
    """A command's docstring for click, which would join the lines of indented paragraphs but for a mark before them."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(f"\b\n{text}" if text.startswith(" ") else text for text in paragraphs)


def _run(arguments: Sequence[str]) -> int:
    if "--version" in arguments[:1]:
        from portakernel import __version__

        print(f"portakernel {__version__}")
        return 0
    named = _named(arguments)
    arguments = arguments or ["--help"]
    # one command is made ready in a third of the time of all
    app = make_app([named]) if named is not None and named in COMMANDS else make_app(manager=_manager())
    streams = sys.stdout, sys.stderr
    try:
        status = typer.main.get_command(app).main(arguments, prog_name="portakernel", standalone_mode=False)
    except SystemExit as ended:
        # typer's way with a pipe that nobody reads any more: status 1, and streams that hide it
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        sys.stdout, sys.stderr = streams
        return PIPE_CLOSED
    except Exception as error:
        # click's usage errors, told by their method: their class lives elsewhere in each version of typer
        message: Callable[[], str] | None = getattr(error, "format_message", None)
        if message is None:
            raise
        command = f"{named} " if named in COMMANDS else ""
        # typer's way with a word that a closed list has not
        text = message().replace(": Value error, ", ": ")
        return _fail(arguments, "UsageError", text, f"Try `portakernel {command}--help`.")
    return status if isinstance(status, int) else 0


def _named(arguments: Sequence[str]) -> str | None:
    """The command that is asked for."""
    return next((argument for argument in arguments if not argument.startswith("-")), None)


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
        kept: list[Any] = []
        for added in registered:
            name = added.name or (added.callback.__name__.replace("_", "-") if added.callback else "")
            if name in taken:
                where = one_line(getattr(added.callback, "__module__", "a plugin"))
                print(f"portakernel: the command {name!r} of {where} is left out: the name is taken", file=sys.stderr)
            else:
                taken.add(name)
                kept.append(added)
        registered[:] = kept


def _fail(arguments: Sequence[str], kind: str, message: str, hint: str = "") -> int:
    if "--json" in arguments:
        print_json_error(kind, message)
    else:
        print(f"portakernel: {printable(message)}" + (f"\n{hint}" if hint else ""), file=sys.stderr)
    return BAD_INPUT


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    print(f"portakernel: {one_line(category.__name__)}: {printable(str(message))}", file=sys.stderr)


def _show_exception(*raised: Any) -> None:
    """A bug's traceback, which may quote anybody."""
    print(printable("".join(traceback.format_exception(*raised))), end="", file=sys.stderr)


def _interrupt(*_: object) -> None:
    """Answers the first Ctrl-C; those behind it would end in a traceback while Python exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_undisturbed() -> None:
    """Has the process end as it is about to: what is printed is to be whole, and the status its own."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _flushed(status: int) -> int:
    stream = answers()
    if stream is None:
        return status
    try:
        stream.flush()
    except OSError as error:
        # `| head` has read enough
        status = PIPE_CLOSED if isinstance(error, BrokenPipeError) else _unwritable(error)
        # what is left in the buffer has nowhere to go, and Python would try again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def _unwritable(error: OSError) -> int:
    return _fail((), "OSError", f"cannot write the answer: {error.strerror}")
