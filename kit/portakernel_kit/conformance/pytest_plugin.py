"""``pytest --portakernel-plugin=NAME``: the kit as test items, in any project where portakernel is installed.

Loaded in every pytest run there, so it imports next to nothing until one of its options is given.
"""

from __future__ import annotations

import argparse

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that ask for the kit."""
    group = parser.getgroup("portakernel", "portakernel's conformance kit")
    group.addoption(
        "--portakernel-plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="check the kernels of this plugin (`reference` are portakernel's own); may be repeated",
    )
    group.addoption(
        "--portakernel-op",
        action="append",
        default=[],
        metavar="OP",
        help="check kernels of this op only; may be repeated",
    )
    group.addoption(
        "--portakernel-seed", type=int, default=None, metavar="N", help="draw the inputs of an earlier run's seed again"
    )
    group.addoption(
        "--portakernel-draws",
        type=_draws,
        default=16,
        metavar="N",
        help="so many requests of each kernel are drawn beside its cases [default: 16]",
    )
    group.addoption(
        "--portakernel-emulate",
        default=None,
        metavar="TARGET",
        help="in the emulator of AMD's instructions, such as amd:gfx942: Triton and HIP kernels, without a GPU",
    )
    group.addoption(
        "--portakernel-all-builds",
        action="store_true",
        help="run every case of kernels that have to be built, not as few as put each claim to the test",
    )


def _draws(text: str) -> int:
    """How many requests ``text`` asks for.

    Raises:
        argparse.ArgumentTypeError: it is no number of requests.
    """
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of requests; it takes 0, for none, or more")
    return int(text)


def _asked(config: pytest.Config) -> bool:
    return bool(config.getoption("portakernel_plugin") or config.getoption("portakernel_op"))


def pytest_configure(config: pytest.Config) -> None:
    """Finds the kernels, so that a wrong name ends the run before anything is collected."""
    if not _asked(config):
        return
    from portakernel.errors import PortakernelError, UnknownNameError
    from portakernel_kit.conformance.pytest_items import selected_kernels, where_asked

    try:
        selected_kernels(config)
    except UnknownNameError as error:
        raise pytest.UsageError(f"--portakernel-{error.kind}: {error}") from error
    try:
        where_asked(config)
    except PortakernelError as error:
        raise pytest.UsageError(f"--portakernel-emulate: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the kit's items to what was collected, before anything is deselected or put in another order."""
    if _asked(config):
        from portakernel_kit.conformance.pytest_items import collect

        items += collect(session)
