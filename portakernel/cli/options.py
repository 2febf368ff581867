"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

# How reasons name what options wish.
COMMAND_LINE = "command line"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, in the stable form that docs/cli.md describes.")]

# A call in words.
Op = Annotated[str, typer.Argument(metavar="OP", help="The op, as `portakernel list` names it.")]
DTypes = Annotated[
    list[str] | None,
    typer.Option("--dtype", metavar="[ARG=]DTYPE", help="The dtype of all arguments, or of one; repeatable."),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="ARG=AxBxC", help="The shape of a tensor argument; repeatable."),
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="[ARG=]FORMAT",
        help="The scale format of all arguments that have one, or of one; repeatable.",
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A keyword argument of the op, as 1.0, true, none, tanh; repeatable."
    ),
]
