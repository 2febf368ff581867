"""The bar that shows how far long work has come, on stderr where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(doing: str, total: int, *, eta: bool = False) -> Iterator[Callable[..., None]]:
    """What tells of progress: ``completed=`` or ``advance=`` so many of ``total``, and the ``description`` of work.

    With ``eta`` it shows how long the rest will take, if it goes on like this.
    """
    from portakernel.cli.output import is_terminal

    if not is_terminal(sys.stderr):
        yield lambda **_: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    if eta:
        columns += [TextColumn("left"), TimeRemainingColumn()]
    # lines for stdout pass through the bar only where both are the terminal
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=is_terminal(sys.stdout)
    ) as bar:
        task = bar.add_task(doing, total=total)

        def tell(**progress: Any) -> None:
            bar.update(task, **progress)

        yield tell
