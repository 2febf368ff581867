"""``portakernel explain``: which kernel serves a call, why, and why each other does not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from portakernel.cli.options import DTypes, Formats, Json, Op, Shapes, Values
from portakernel.errors import ArgumentValueError, UnknownNameError

_SIZES = re.compile(r"[0-9]{1,18}(x[0-9]{1,18})*")
_SHAPE_FORM = "write ARG=AxBxC, such as x=4096x8192"


def command(
    op: Op,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="VENDOR:ARCH",
            help="The hardware, which need not be here [default: this machine's first device].",
        ),
    ] = None,
    dtype: DTypes = None,
    shape: Shapes = None,
    format: Formats = None,
    parameters: Values = None,
    phase: Annotated[
        str, typer.Option("--phase", metavar="inference|training|backward", help="The part of the op.")
    ] = "inference",
    use: Annotated[
        list[str] | None, typer.Option("--use", metavar="NAME", help="Only this kernel, or this plugin's; repeatable.")
    ] = None,
    prefer: Annotated[
        list[str] | None,
        typer.Option("--prefer", metavar="NAME", help="First this kernel, or this plugin's; repeatable."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option("--deny", metavar="NAME", help="Never this kernel, or this plugin's; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    r"""Say which kernel serves a call, why, and why each other does not. Nothing runs.

    Exits with 0 when a kernel was chosen, 1 when none can serve, 2 when the question has no answer.

    For example:

        portakernel explain rms_norm
        portakernel explain rms_norm --target amd:gfx942 --dtype bfloat16 --shape x=4096x8192
        portakernel explain rms_norm --target nvidia:sm_90 --dtype x=float16 --dtype weight=float32 \
            --set weight_offset=1.0 --phase training --deny triton --json
    """
    from portakernel.api import explain
    from portakernel.cli.explanation import print_explanation
    from portakernel.cli.output import page, print_json
    from portakernel.naming import check_ships
    from portakernel.policies import make_layer
    from portakernel.runtime import dispatcher

    dtypes, shapes = read_names("--dtype", dtype or ()), read_shapes(shape or ())
    values = read_parameters(op, parameters or ())
    formats = read_names("--format", format or ())
    asked: dict[str, Any] = {**values, "format": formats} if formats is not None else values
    now = dispatcher()
    layer = make_layer("command line", tuple(use or ()), tuple(prefer or ()), tuple(deny or ())).check(now.registry)
    for name in use or ():
        check_ships(now.registry, op, name)
    token = now.context_layers.set((layer,) if use or prefer or deny else ())
    try:
        decision = explain(op, target=target, dtype=dtypes, shape=shapes, phase=phase, **asked)
    finally:
        now.context_layers.reset(token)
    if json:
        print_json(decision.to_json())
    else:
        print_explanation(page(), decision, now.registry)
    raise typer.Exit(0 if decision.chosen else 1)


def read_names(option: str, texts: Sequence[str]) -> dict[str, str] | str | None:
    """``["bfloat16"]`` as one dtype (or scale format) for all arguments, ``["x=bfloat16", ...]`` as one for each.

    Raises:
        ArgumentValueError: both forms, or one argument twice.
    """
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0].strip()
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ArgumentValueError(
                f"{option} {text} is for every argument, so it stands alone; beside others write ARG={text}"
            )
        if name in found:
            raise ArgumentValueError(f"{option} gives {name} twice: {found[name]} and {value}")
        found[name] = value
    return found


def read_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """``["x=4096x8192"]`` as sizes by argument.

    Raises:
        ArgumentValueError: a text is not of that form, or names an argument twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = (part.strip() for part in text.partition("="))
        if not name or not _SIZES.fullmatch(sizes):
            raise ArgumentValueError(f"--shape {text!r} is not a shape; {_SHAPE_FORM}")
        if name in found:
            raise ArgumentValueError(f"--shape gives {name} twice")
        found[name] = tuple(int(size) for size in sizes.split("x"))
    return found or None


def read_parameters(op: str, texts: Sequence[str]) -> dict[str, Any]:
    """``["weight_offset=1.0"]`` as values by keyword argument of ``op``.

    Raises:
        UnknownNameError: there is no such op, or it has no such argument.
        ArgumentTypeError, ArgumentValueError: a text is not of that form, names an argument twice, or is no value of
            it.
    """
    from portakernel.contracts import contract

    described = contract(op)
    known = [parameter.name for parameter in described.parameters]
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name not in known:
            raise UnknownNameError("parameter", name, known, where=f"--set: {op}")
        if name in found:
            raise ArgumentValueError(f"--set gives {name} twice")
        if not equals:
            raise ArgumentValueError(f"--set {text!r} is not NAME=VALUE, such as {name}=1.0")
        found[name] = described.parse_parameter(name, value)
    return found
