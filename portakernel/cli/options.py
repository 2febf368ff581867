"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
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

# Which kernels, and where they run.
OnlyPlugin = Annotated[str | None, typer.Option("--plugin", metavar="PLUGIN", help="Only this plugin's kernels.")]
OnlyOp = Annotated[str | None, typer.Option("--op", metavar="OP", help="Only kernels of this op.")]
OnlyKernels = Annotated[
    list[str] | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel; repeatable.")
]
Deny = Annotated[
    list[str] | None, typer.Option("--deny", metavar="NAME", help="Never this kernel, or this plugin's; repeatable.")
]
FoundDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="Where to run, such as cuda:0 or amd:gfx942 [default: wherever a kernel can].",
    ),
]
FirstDevice = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="Where, such as cuda:0 [default: this machine's first device]."),
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Draws the inputs [default: a fresh one, which is shown].")
]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Processes side by side [default: one a core].")
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Write the results there as JSON, as they come.")
]
