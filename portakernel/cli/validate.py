"""``portakernel validate``: everything that is wrong with manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portakernel.cli.options import Json


def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...", help="A plugin.yaml, a backend.yaml or their folder [default: all installed]."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check manifests strictly, and say everything that is wrong: file, line, key, what was found, what is accepted.

    Nothing of the plugin is imported. Exits with 0 when all is well, 1 when there is a problem.

    For example:

        portakernel validate
        portakernel validate src/acme_kernels/plugin.yaml
        portakernel validate src/acme_kernels --json
    """
    from portakernel.cli.output import page, print_json
    from portakernel.cli.validation import Problem, installed_subjects, problems_of, subjects_at

    if paths:
        elsewhere = list[Problem]()
        subjects = list(dict.fromkeys(subject for path in paths for subject in subjects_at(path)))
    else:
        subjects, elsewhere = installed_subjects()
    found = problems_of(subjects)
    problems = [*elsewhere, *(problem for several in found.values() for problem in several)]
    if json:
        print_json(
            {
                "ok": not problems,
                "checked": [
                    {
                        "file": str(subject.file),
                        "kind": subject.kind,
                        "module": subject.package.module,
                        "problems": len(several),
                    }
                    for subject, several in found.items()
                ],
                "problems": [problem.to_json() for problem in problems],
            }
        )
    else:
        out = page()
        for problem in problems:
            out.line(str(problem), "bad")
        counted = f"{len(found)} manifest{'s' * (len(found) != 1)}"
        out.line(f"{counted}: {f'{len(problems)} problem' + 's' * (len(problems) != 1) if problems else 'no problems'}")
    raise typer.Exit(1 if problems else 0)
