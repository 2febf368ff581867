"""Errors, help, version, and the commands that plugins add."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from portakernel import __version__
from portakernel.cli import COMMANDS

MANIFEST = "schema_version: 1\nplugin: {name}\nhooks: [portakernel_cli]\n"
SOURCE = """\
import portakernel.hookspecs

@portakernel.hookspecs.hookimpl
def portakernel_cli(app):
    @app.command()
    def {command}():
        "What acme adds."
        print("acme speaks")
"""


def test_version_is_portakernels(run: Callable) -> None:
    assert run("--version").out == f"portakernel {__version__}\n"


def test_without_arguments_the_help_names_every_command(run: Callable) -> None:
    ran = run("")
    assert ran.status == 0
    assert all(f"\n  {name} " in ran.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_has_an_example_and_json(run: Callable, name: str) -> None:
    ran = run(f"{name} --help")
    assert ran.status == 0
    assert f"For example:\n\n      portakernel {name}" in ran.out
    actions = getattr(importlib.import_module(COMMANDS[name]), "ACTIONS", {})
    assert all("--json" in run(f"{name} {action} --help").out for action in actions)
    assert actions or "--json" in ran.out


def test_a_misspelt_command_is_offered_the_nearest(run: Callable) -> None:
    ran = run("valdate rms_norm")
    assert ran.status == 2
    assert ran.err == "portakernel: No such command 'valdate'. Did you mean 'validate'?\nTry `portakernel --help`.\n"


@pytest.mark.parametrize("command", ["check", "compile", "lint"])
def test_an_option_that_takes_one_value_is_not_given_twice(run: Callable, command: str) -> None:
    """The last one won, without a word."""
    ran = run(f"{command} --op add --plugin torch --op rms_norm")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("portakernel: --op is given 2 times and takes one value: run the command for each\n")


def test_an_unknown_option_is_bad_input(run: Callable) -> None:
    ran = run("list --oop add")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.endswith("\nTry `portakernel list --help`.\n")


def test_an_error_is_a_message_on_stderr_and_status_2(run: Callable) -> None:
    ran = run("list --op ad")
    assert (ran.status, ran.out, ran.err) == (2, "", "portakernel: unknown op 'ad'; did you mean 'add'?\n")


def test_with_json_an_error_is_an_object_on_stdout(run: Callable) -> None:
    ran = run("list --op ad --json")
    assert (ran.status, ran.err) == (2, "")
    assert ran.json == {"error": {"type": "UnknownNameError", "message": "unknown op 'ad'; did you mean 'add'?"}}


def test_with_json_a_usage_error_is_an_object_too(run: Callable) -> None:
    ran = run("list nothing --json")
    assert (ran.status, ran.err) == (2, "")
    assert ran.json["error"]["type"] == "UsageError"


def test_an_environment_at_fault_stops_a_command_but_not_the_help(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAKERNEL_REFERENCE", "never")
    assert run("--help").status == 0
    ran = run("list")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == "portakernel: PORTAKERNEL_REFERENCE is 'never'; known: allow, forbid, warn\n"


def test_a_plugin_adds_a_command_that_help_lists(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=MANIFEST.format(name="acme"), source=SOURCE.format(command="acme_state"))
    assert run("acme-state").out == "acme speaks\n"
    assert "What acme adds." in run("--help").out


def test_a_plugins_module_is_imported_neither_for_the_cores_commands_nor_without_the_hook(
    run: Callable, install: Callable[..., Path]
) -> None:
    folder = install("acme", manifest=MANIFEST.format(name="acme"), source=SOURCE.format(command="acme"))
    other = install("bland", manifest="schema_version: 1\nplugin: bland\n", source="raise RuntimeError('imported')")
    assert run("list").status == 0
    assert folder.name not in sys.modules
    assert run("--help").status == 0
    assert folder.name in sys.modules
    assert other.name not in sys.modules


def test_a_plugins_command_cannot_take_the_name_of_the_cores(run: Callable, install: Callable[..., Path]) -> None:
    folder = install("acme", manifest=MANIFEST.format(name="acme"), source=SOURCE.format(command="doctor"))
    ran = run("--help")
    assert "What acme adds." not in ran.out
    assert ran.err == f"portakernel: the command 'doctor' of {folder.name} is left out: the name is taken\n"


def test_a_plugin_whose_hook_raises_leaves_the_others_commands(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=MANIFEST.format(name="acme"), source=SOURCE.format(command="acme"))
    broken = SOURCE.format(command="broken").replace(
        "    @app.command()", "    raise SystemExit(3)\n    @app.command()"
    )
    install("broken", manifest=MANIFEST.format(name="broken"), source=broken)
    assert run("acme").out == "acme speaks\n"
