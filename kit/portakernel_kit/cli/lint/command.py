"""``portakernel lint``: what manifests declare beside what is observed, refusals included."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from portakernel.cli.options import FoundDevice, Json, OnlyKernels, OnlyOp, OnlyPlugin, Output, Seed


def command(
    plugin: OnlyPlugin = None,
    op: OnlyOp = None,
    kernel: OnlyKernels = None,
    device: FoundDevice = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="S", min=0.0, help="How long to try what each kernel's claims refuse [default: 20]."
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option("--patience", metavar="S", min=1.0, help="How long one case may take; it hangs after that.")
    ] = 300.0,
    no_claims: Annotated[
        bool, typer.Option("--no-claims", help="Only what is refused; `portakernel check` has the rest.")
    ] = False,
    targets: Annotated[
        bool,
        typer.Option("--targets", help="Ask kernels whose targets leave out all devices here for one of them, too."),
    ] = False,
    mutate: Annotated[
        bool,
        typer.Option("--mutate", help="Change the manifests, one claim or key at a time: somebody has to notice."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="A refusal that would have worked counts as a failure.")
    ] = False,
    seed: Seed = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Hold what kernels declare against what is observed: claims that fail, refusals that would have worked.

    Every claim is checked, as `portakernel check` does. Then each kernel is asked for what a single one of its claims
    refuses, in a process of its own, which may die of it: a refusal is right where the kernel is wrong, refuses by
    itself, raises, hangs or ends the process, and too narrow where all that is tried is correct.

    With --mutate the kit itself is put to the test, on copies of the manifests: each claim is widened, which a case
    has to refute; each is removed, which has to be found to have worked; and each required key is removed, which
    `portakernel validate` has to name.

    Exits with 0 when every claim holds, 1 when one fails or nothing ran, 130 when interrupted; with --mutate, with 1
    when a mutation goes unnoticed or none was noticed.

    For example:

        portakernel lint --plugin triton --device cuda:0
        portakernel lint --kernel torch.rms_norm --no-claims --seconds 60
        portakernel lint --plugin acme --strict --output results --json
        portakernel lint --plugin acme --mutate
    """
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.errors import ArgumentValueError
    from portakernel.runtime import dispatcher

    now = dispatcher()
    asked = chosen_kernels(now.registry, op, plugin, kernel)  # a name that nothing has is told before torch is loaded
    where = now.registry.device(device) if device is not None else None
    if mutate:
        if seconds is not None or no_claims or targets:
            given = "--seconds" if seconds is not None else "--no-claims" if no_claims else "--targets"
            raise ArgumentValueError(
                f"{given} does not go with --mutate, which tries each mutation by itself; drop one"
            )
        from portakernel_kit.cli.lint.mutations import run_mutations

        whole = plugin if op is None and not kernel else None
        raise typer.Exit(run_mutations(now, asked, whole, where, seed, output, patience, shows=not json, strict=strict))
    seconds = 20.0 if seconds is None else seconds
    from portakernel_kit.cli.lint.run import LintRun

    run = LintRun(now, where, seed, output, shows=not json)
    with suppress(KeyboardInterrupt):
        run.lint(asked, seconds=seconds, patience_s=patience, claims=not no_claims, targets=targets)
    raise typer.Exit(run.end(strict=strict))
