"""``portakernel build``: what a plugin compiles from C++ built ahead, for targets here or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import Json

if TYPE_CHECKING:
    from portakernel.cli.output import Cell, Page
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.native.ahead import Built
    from portakernel.native.unit import Unit
    from portakernel.words.target import Target


def command(
    plugin: Annotated[str, typer.Argument(metavar="PLUGIN", help="The plugin, as `portakernel list` names it.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="VENDOR:ARCH", help="For this target; repeatable [default: this machine's devices]."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, help="Compilers side by side [default: as cores and memory go]."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print what compilers wrote where they fail.")
    ] = False,
    json: Json = False,
) -> None:
    """Compile a plugin's C++ kernels into the cache, for this machine or another's targets.

    What the cache has is left as it is. A deployment runs this where its image is made, with PORTAKERNEL_CACHE_DIR
    inside the image: its processes find the kernels there and need no compiler.

    Exits with 0 when all is built, 1 when something cannot be, 130 when interrupted; what was built until then is kept.

    For example:

        portakernel build cutlass --target nvidia:sm_90
        portakernel build hip --target amd:gfx942 --target amd:gfx950 --workers 8
    """
    from portakernel.cli.output import page, print_json
    from portakernel.cli.progress import progress
    from portakernel.native.ahead import build_all
    from portakernel.runtime import dispatcher

    todo = _units(dispatcher(), plugin, target)
    found: list[Built] = []
    interrupted = False
    with progress("building", len(todo)) as tell:
        outcomes = build_all(todo, workers)
        try:
            for built in outcomes:
                found.append(built)
                tell(advance=1, description=f"{built.unit.source.file} for {built.target}")
        except KeyboardInterrupt:
            interrupted = True
        finally:
            outcomes.close()
    if json:
        print_json({"plugin": plugin, "interrupted": interrupted, "units": [built.to_json() for built in found]})
    else:
        _print(page(), found, interrupted=interrupted, verbose=verbose)
    if interrupted:
        raise typer.Exit(130)
    raise typer.Exit(1 if any(built.verdict == "fails" for built in found) else 0)


def _units(now: Dispatcher, plugin: str, targets: Sequence[str] | None) -> list[tuple[Unit, Target]]:
    """What the plugin lists for the targets.

    Raises:
        ArgumentValueError: there is no target, or the plugin lists nothing.
    """
    from portakernel.errors import ArgumentValueError, UnknownNameError

    registry = now.registry
    if plugin not in registry.plugins():
        raise UnknownNameError("plugin", plugin, registry.plugins())
    entry = registry.units(plugin)
    if entry is None:
        able = ", ".join(name for name in registry.plugins() if registry.units(name) is not None) or "none"
        text = f"build: {plugin} lists nothing to build ahead (`units:` in its manifest); these do: {able}."
        raise ArgumentValueError(f"{text} `portakernel warmup` compiles what calls need")
    asked = [registry.target(text) for text in dict.fromkeys(targets or ())]
    asked = asked or list(dict.fromkeys(device.target for device in registry.devices if not device.attached))
    todo = [(unit, target) for target in asked for unit in now.entry(entry)(target)]
    if not todo:
        shown = ", ".join(map(str, asked)) or "no device is here"
        raise ArgumentValueError(f"build: {plugin} has nothing for {shown}; name a target that it claims with --target")
    return todo


def _print(out: Page, found: Sequence[Built], *, interrupted: bool, verbose: bool) -> None:
    from portakernel.claims.capability import Rejection
    from portakernel.cli.output import Cell

    out.heading("Interrupted; until then:" if interrupted else "Built ahead")
    rows: list[tuple[str | Cell, ...]] = []
    for built in sorted(found, key=lambda one: (one.label, one.unit.names, one.target)):
        style: Any = "bad" if built.verdict == "fails" else "good"
        size = "" if isinstance(built.outcome, Rejection) else f"{len(built.outcome.code) / 1024:.0f}"
        name = ", ".join(built.unit.names) if built.unit.form == "code object" else built.unit.form
        rows.append((built.label, name, str(built.target), Cell(built.verdict, style), size, f"{built.seconds:.1f}"))
    if rows:
        out.table(rows, ("source", "kernels", "target", "verdict", "KiB", "seconds"), indent=2, right=(4, 5))
    for built in found:
        if isinstance(built.outcome, Rejection):
            out.line(f"{built.label} for {built.target}: {built.outcome.code}", "bad")
            out.line(built.told if verbose and built.told else built.outcome.text, indent=4)
