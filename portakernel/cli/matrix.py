"""``portakernel matrix``: which op is served where, in which dtypes and formats, as the manifests claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.options import Json

if TYPE_CHECKING:
    from portakernel.matrix.table import OpSupport
    from portakernel.registry.registry import Registry


def command(
    op: Annotated[str | None, typer.Option("--op", metavar="OP", help="Only this op.")] = None,
    vendor: Annotated[
        str | None, typer.Option("--vendor", metavar="VENDOR", help="Only this vendor's hardware.")
    ] = None,
    plugin: Annotated[
        str | None, typer.Option("--plugin", metavar="PLUGIN", help="Only kernels of this plugin.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it as one page that filters, for a browser.")
    ] = None,
    proofs: Annotated[
        list[Path] | None,
        typer.Option(
            "--proof", metavar="FILE", help="With --html: what check, compile or bench printed with --json; repeatable."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print the support matrix in Markdown: each op's kernels, what they claim, and on which architectures.

    Claims of dtypes and scale formats are marked native or emulated, by what is known of each architecture. Declared
    does not mean proven: `portakernel check` runs the kernels that this machine can. The page that --html writes has
    beside each claim what was compiled for it and what ran, as recorded, and what each --proof adds.

    For example:

        portakernel matrix
        portakernel matrix --op rms_norm --vendor amd
        portakernel matrix --plugin triton --json
        portakernel matrix --html matrix.html
        portakernel matrix --plugin acme --html matrix.html --proof checked.json
    """
    from portakernel.cli.list_kernels import chosen_kernels, tell_broken
    from portakernel.cli.output import print_json
    from portakernel.errors import ArgumentValueError
    from portakernel.matrix.table import markdown, support_matrix
    from portakernel.runtime import dispatcher
    from portakernel.text.printable import one_line, printable

    if proofs and html is None:
        raise ArgumentValueError("matrix: --proof goes with --html FILE, which shows what was proven")
    registry = dispatcher().registry
    chosen_kernels(registry, op, plugin)  # a name that nothing has is told as by `list`, with what is known of it
    matrix = support_matrix(registry, op=op, vendor=vendor, plugin=plugin)
    if html is not None:
        _write_page(html, matrix, proofs or (), registry)
    if json:
        print_json({"ops": [support.to_json() for support in matrix]})
    elif html is not None:
        print(f"wrote {one_line(str(html))}")
    else:
        print(printable(markdown(matrix)), end="")
    if not json:
        tell_broken(registry)


def _write_page(path: Path, matrix: Sequence[OpSupport], outputs: Sequence[Path], registry: Registry) -> None:
    from portakernel.errors import ArgumentValueError
    from portakernel.matrix.page import page
    from portakernel.matrix.proofs import merged, read_output, recorded

    known = recorded()
    for output in outputs:
        known = merged(known, read_output(output, registry.kernels))
    try:
        path.write_text(page(matrix, known), encoding="utf-8")
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror or error}"
        raise ArgumentValueError(f"{text}; name a file in a folder that exists with --html") from error
