"""``portakernel validate``: everything that is wrong with manifests and policy files."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from portakernel.cli.options import Json


def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="A plugin.yaml, a backend.yaml, their folder, the folder of their pyproject.toml, or a policy.yaml"
            " [default: all that is in force].",
        ),
    ] = None,
    imports: Annotated[
        bool, typer.Option("--imports", help="Import every entry too, in a process of its own.")
    ] = False,
    json: Json = False,
) -> None:
    """Check manifests and policy files strictly, and say all that is wrong, by file and line: key, found, accepted.

    Nothing of a plugin is imported for its manifest but the contracts of ops, unless --imports asks for it. Exits with
    0 when all is well, 1 when there is a problem.

    For example:

        portakernel validate
        portakernel validate .
        portakernel validate src/acme_kernels/plugin.yaml
        portakernel validate src/acme_kernels --json
        portakernel validate /etc/portakernel/policy.yaml
    """
    from portakernel.cli.output import page, print_json
    from portakernel.errors import ArgumentValueError
    from portakernel_kit.cli.validate.policies import is_policy, policies_in_force, problems_of_policies
    from portakernel_kit.cli.validate.problems import Problem
    from portakernel_kit.cli.validate.projects import FILE
    from portakernel_kit.cli.validate.validation import Subject, installed_subjects, problems_of, subjects_at

    if paths:
        elsewhere, named = list[Problem](), list[Subject]()
        policies = [path for path in paths if is_policy(path)]
        others = [path for path in paths if path not in policies]
        for path in others:
            try:
                at_path, of_project = subjects_at(path)
            except ArgumentValueError as error:
                if len(paths) == 1:
                    raise
                # one that is not there hides nothing of the others
                at_path, of_project = [], [Problem(str(path), None, None, str(error).removeprefix(f"{path}: "))]
            named, elsewhere = [*named, *at_path], [*elsewhere, *of_project]
        subjects = list(dict.fromkeys(named))
    else:
        policies = policies_in_force()
        subjects, elsewhere = installed_subjects()
    manifests = problems_of(subjects, imports=imports)
    of_policies, of_variables = problems_of_policies(policies, variables=not paths)
    in_files = [*elsewhere, *itertools.chain(*manifests.values(), *of_policies.values())]
    problems = [*sorted(in_files, key=lambda problem: (problem.file, problem.line or 0)), *of_variables]
    if json:
        print_json(
            {
                "ok": not problems,
                "checked": [
                    *(
                        {
                            "file": str(subject.file),
                            "kind": subject.kind,
                            "module": subject.package.module,
                            "problems": len(several),
                        }
                        for subject, several in manifests.items()
                    ),
                    *(
                        {"file": str(file), "kind": "policy", "module": None, "problems": len(several)}
                        for file, several in of_policies.items()
                    ),
                    # a file of a project's, or what is none: an entry point, a variable, a path that is not there
                    *(
                        {
                            "file": file,
                            "kind": "project" if Path(file).name == FILE else "other",
                            "module": None,
                            "problems": several,
                        }
                        for file, several in Counter(problem.file for problem in (*elsewhere, *of_variables)).items()
                    ),
                ],
                "problems": [problem.to_json() for problem in problems],
            }
        )
    else:
        out = page()
        for problem in problems:
            out.line(str(problem), "bad")
        counted = [_counted(len(manifests), "manifest")] if manifests or not of_policies else []
        counted += [_counted(len(of_policies), "policy file")] if of_policies else []
        out.line(f"{', '.join(counted)}: {_counted(len(problems), 'problem') if problems else 'no problems'}")
    raise typer.Exit(1 if problems else 0)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
