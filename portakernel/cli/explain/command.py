"""``portakernel explain``: which kernel serves a call, why, and why each other does not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import COMMAND_LINE, Deny, DTypes, Formats, Json, Shapes, Values
from portakernel.errors import ArgumentValueError, UnknownNameError

if TYPE_CHECKING:
    from portakernel.deciding.decision import Decision

_SIZES = re.compile(r"[0-9]{1,18}(x[0-9]{1,18})*")
_SHAPE_FORM = "write ARG=AxBxC, such as x=4096x8192"


def command(
    op: Annotated[
        str | None, typer.Argument(metavar="[OP]", help="The op, as `portakernel list` names it; or --all.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every op, each in a dtype that it takes there.")] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="VENDOR:ARCH[/UNITS]",
            help="The hardware, which need not be here: nvidia:sm_90, or a product, as h100; with units what plans and"
            " measurements say of it; several for a table [default: this machine's first device].",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="A device of this machine, such as cuda:0.")
    ] = None,
    dtype: DTypes = None,
    shape: Shapes = None,
    format: Formats = None,
    parameters: Values = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(
            "--fact",
            metavar="ARG.FACT=VALUE",
            help="What is not plain about a tensor's memory, as x.contiguous=false; repeatable.",
        ),
    ] = None,
    phase: Annotated[
        str, typer.Option("--phase", metavar="inference|training|backward", help="The part of the op.")
    ] = "inference",
    saved_by: Annotated[
        str | None, typer.Option("--saved-by", metavar="KERNEL", help="For backward: the kernel that ran forward.")
    ] = None,
    use: Annotated[
        list[str] | None, typer.Option("--use", metavar="NAME", help="Only this kernel, or this plugin's; repeatable.")
    ] = None,
    prefer: Annotated[
        list[str] | None,
        typer.Option("--prefer", metavar="NAME", help="First this kernel, or this plugin's; repeatable."),
    ] = None,
    deny: Deny = None,
    require: Annotated[
        list[str] | None,
        typer.Option("--require", metavar="PROPERTY", help="Only kernels with this property; repeatable."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="allow|warn|forbid", help="Whether the reference may serve.")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="For a graph of torch.compile: the kernel, and its form there.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--form", metavar="inline|kernel|call", help="With --compiled: the form that kernels first have there."
        ),
    ] = None,
    source: Annotated[
        bool, typer.Option("--source", help="Print what such a call runs once it was seen, as source text.")
    ] = False,
    json: Json = False,
) -> None:
    r"""Say which kernel serves a call, why, and why each other does not. Nothing runs.

    With --all, or several targets, it is a table; with --json the file that `portakernel diff` compares.

    Exits with 0 when a kernel was chosen for all that was asked, 1 when none can serve, 2 when the question has no
    answer.

    For example:

        portakernel explain rms_norm
        portakernel explain rms_norm --target mi300x --dtype bfloat16 --shape x=4096x8192
        portakernel explain rms_norm --target nvidia:sm_90 --dtype x=float16 --dtype weight=float32 \
            --set weight_offset=1.0 --phase training --deny triton --json
        portakernel explain rms_norm --source
        portakernel explain rms_norm --target h100 --compiled
        portakernel explain rms_norm --target nvidia:sm_90/132 --dtype bfloat16 --shape x=64x4096
        portakernel explain --all --target h100 --target mi300x --json
    """
    from portakernel.claims.request import Phase
    from portakernel.cli.explain.call_steps import print_steps, running_steps
    from portakernel.cli.explain.decision_sheet import decide_sheet, print_sheet, sheet_json
    from portakernel.cli.explain.explanation import print_explanation
    from portakernel.cli.output import page, print_json
    from portakernel.cli.target_words import target_and_units
    from portakernel.deciding.explaining import explain_in_words, without_use
    from portakernel.deciding.kernel_argument import check_ships
    from portakernel.deciding.policies import make_layer
    from portakernel.runtime import dispatcher

    if phase not in list(Phase):
        raise UnknownNameError("phase", phase, [str(known) for known in Phase])
    if (op is None) is not every:
        raise ArgumentValueError("explain: give an op, or --all for every op; not both")
    now = dispatcher()
    asked = {text: target_and_units(text, now.registry) for text in target or ()}
    targets = [text if units is None else where for text, (where, units) in asked.items()]
    mode: Any = reference
    wanted_form: Any = form
    if form is not None and not compiled:
        raise ArgumentValueError("explain: --form is about compiled graphs; add --compiled")
    if source and compiled:
        raise ArgumentValueError("explain: --source prints what calls run; a compiled graph is Inductor's")
    freed: Decision | None = None
    names = tuple(use or ()), tuple(prefer or ()), tuple(deny or ()), tuple(require or ())
    layer = make_layer(COMMAND_LINE, *names, reference=mode, compiled=wanted_form).check(now.registry)
    for name in use or () if op is not None else ():
        check_ships(now.registry, op or "", name)
    token = now.context_layers.set((layer,) if any(names) or reference or form else ())
    try:
        if op is not None and len(targets) < 2:
            decisions = [
                explain_in_words(
                    now,
                    op,
                    target=targets[0] if targets else None,
                    units=next((units for _, units in asked.values()), None),
                    device=device,
                    dtype=read_names("--dtype", dtype or ()),
                    shape=read_shapes(shape or ()),
                    format=read_names("--format", format or ()),
                    parameters=read_parameters(op, parameters or ()),
                    facts=read_facts(fact or ()),
                    phase=Phase(phase),
                    saved_by=saved_by,
                    compiled=compiled,
                )
            ]
            freed = without_use(now, decisions[0]) if decisions[0].chosen is None else None
        else:
            given = {"--shape": shape, "--format": format, "--set": parameters, "--fact": fact, "--saved-by": saved_by}
            given |= {"--source": "yes"} if source else {}
            given |= {f"--target {text}": "units" for text, (_, units) in asked.items() if units is not None}
            if told := [option for option, value in given.items() if value]:
                raise ArgumentValueError(f"explain: {', '.join(told)} is about one call: give one op, and one --target")
            if dtype and (len(dtype) > 1 or "=" in dtype[0]):
                raise ArgumentValueError("explain: of several decisions --dtype is one, for every op that takes it")
            ops = None if op is None else [op]
            dtype_of_all = dtype[0] if dtype else None
            decisions = decide_sheet(
                now, ops, targets, device=device, dtype=dtype_of_all, phase=Phase(phase), compiled=compiled
            )
    finally:
        now.context_layers.reset(token)
    steps = running_steps(decisions[0]) if source else []
    if json and op is not None and len(targets) < 2:
        print_json(decisions[0].to_json() | ({"source": [asdict(step) for step in steps]} if source else {}))
    elif json:
        print_json(sheet_json(decisions))
    else:
        out = page()
        for text, (resolved, _) in asked.items():
            if (named := text.partition("/")[0].strip()) != resolved:
                out.line(f"{named} is {resolved}.", "faint")
        if op is not None and len(targets) < 2:
            print_explanation(out, decisions[0], now.registry, freed)
            print_steps(out, steps)
        else:
            print_sheet(out, decisions, now.registry, dtype[0] if dtype else None)
    raise typer.Exit(0 if all(decision.chosen for decision in decisions) else 1)


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


def read_facts(texts: Sequence[str]) -> dict[str, int]:
    """``["x.contiguous=false", "x.alignment=2"]`` as facts by name.

    Raises:
        ArgumentValueError: a text is not of that form, or gives a fact twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        words = {"true": True, "false": False}
        if value.lower() not in words and not re.fullmatch(r"-?[0-9]{1,18}", value):
            form = "write ARG.FACT=VALUE, such as x.contiguous=false or x.alignment=2"
            raise ArgumentValueError(f"--fact {text!r} says nothing of a tensor's memory; {form}")
        if name in found:
            raise ArgumentValueError(f"--fact gives {name} twice")
        found[name] = words[value.lower()] if value.lower() in words else int(value)
    return found


def read_parameters(op: str, texts: Sequence[str]) -> dict[str, Any]:
    """``["weight_offset=1.0"]`` as values by keyword argument of ``op``.

    Raises:
        UnknownNameError: there is no such op, or it has no such argument.
        ArgumentTypeError, ArgumentValueError: a text is not of that form, names an argument twice, or is no value of
            it.
    """
    from portakernel.runtime import contract_of

    described = contract_of(op)
    known = [parameter.name for parameter in described.parameters]
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name in described.names:
            tensor = f"--set {name}: {name} is a tensor of {op}; say that it is given by its shape or dtype, as in"
            raise ArgumentValueError(f"{tensor} --dtype {name}=float32")
        if name not in known:
            raise UnknownNameError("parameter", name, known, where=f"--set: {op}")
        if name in found:
            raise ArgumentValueError(f"--set gives {name} twice")
        if not equals:
            raise ArgumentValueError(f"--set {text!r} is not NAME=VALUE, such as {name}=1.0")
        found[name] = described.parse_parameter(name, value)
    return found
