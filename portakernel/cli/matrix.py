"""``portakernel matrix``: which op is served where, in which dtypes and formats, as the manifests claim."""

from __future__ import annotations

from typing import Annotated

import typer

from portakernel.cli.options import Json


def command(
    op: Annotated[str | None, typer.Option("--op", metavar="OP", help="Only this op.")] = None,
    vendor: Annotated[
        str | None, typer.Option("--vendor", metavar="VENDOR", help="Only this vendor's hardware.")
    ] = None,
    plugin: Annotated[
        str | None, typer.Option("--plugin", metavar="PLUGIN", help="Only kernels of this plugin.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the support matrix in Markdown: each op's kernels, what they claim, and on which architectures.

    Claims of dtypes and scale formats are marked native or emulated, by what is known of each architecture. Declared
    does not mean proven: `portakernel check` runs the kernels that this machine can.

    For example:

        portakernel matrix
        portakernel matrix --op rms_norm --vendor amd
        portakernel matrix --plugin triton --json
    """
    from portakernel.cli.list_kernels import tell_broken
    from portakernel.cli.output import print_json, printable
    from portakernel.matrix import markdown, support_matrix
    from portakernel.runtime import dispatcher

    registry = dispatcher().registry
    matrix = support_matrix(registry, op=op, vendor=vendor, plugin=plugin)
    if json:
        print_json({"ops": [support.to_json() for support in matrix]})
        return
    print(printable(markdown(matrix)), end="")
    tell_broken(registry)
