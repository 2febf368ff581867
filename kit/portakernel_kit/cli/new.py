"""``portakernel new``: a package for a plugin, a backend or an op, whole and working."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from portakernel.cli.options import Json


def command(
    kind: Annotated[
        Literal["plugin", "backend", "op"],
        typer.Argument(
            metavar="plugin|backend|op",
            help="Kernels for devices that are known, a new vendor's devices, or an op with its kernels.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: that of the folder, manifests and kernels.")],
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="The folder to write the package's folder into.")
    ] = Path(),
    json: Json = False,
) -> None:
    """Write a package for a plugin, a backend or an op: it installs, its tests pass, and it is yours to change.

    The folder NAME holds pyproject.toml with the entry point, the manifest, one kernel, tests that run the conformance
    kit, a README and a CI file; of an op its contract and reference too. Nothing is written where the name is taken or
    the folder exists.

    For example:

        portakernel new plugin acme
        portakernel new backend acme --directory ~/projects
        portakernel new op demo_scan
    """
    from portakernel.cli.output import page, print_json
    from portakernel.runtime import dispatcher
    from portakernel_kit.scaffold import scaffold

    written = scaffold(kind, name, directory, dispatcher().registry)
    steps = (f"cd {written.folder}", "pip install -e '.[test]'", "pytest")
    if json:
        print_json(
            {
                "kind": kind,
                "name": name,
                "folder": str(written.folder),
                "module": written.module,
                "distribution": written.distribution,
                "files": [path.as_posix() for path in written.files],
                "steps": list(steps),
            }
        )
        return
    out = page()
    out.line(f"{written.folder} holds {written.distribution}, {'an' if kind == 'op' else 'a'} {kind}:")
    for path in written.files:
        out.line(f"  {path.as_posix()}")
    out.line("Next:")
    for step in steps:
        out.line(f"  {step}")
