"""``portakernel demo``: a small decoder learns a text, through portakernel and in plain torch, with the reasons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.options import COMMAND_LINE, Json
from portakernel.errors import ArgumentValueError, UnknownNameError

if TYPE_CHECKING:
    from portakernel.words.target import Device
    from portakernel_kit.demo.live import Live
    from portakernel_kit.demo.run import Trial

OWN_TEXT = "text.txt"
STEPS = 200
MOST_BYTES = 1 << 16
PRECISIONS = ("float32", "fp8")


@dataclass(frozen=True, slots=True)
class Text:
    """What was read of a file, or without one the text that portakernel brings; ``more`` when there was more."""

    path: Path | None
    data: bytes
    more: bool


def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Any file to read as text [default: a page of portakernel's own]."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="cpu|cuda:0", help="Where to run [default: this machine's first device]."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="How many steps to train.")] = STEPS,
    precision: Annotated[
        str,
        typer.Option(
            "--precision", metavar="float32|fp8", help="fp8: the trained model's linear layers once more in FP8."
        ),
    ] = "float32",
    prefer: Annotated[
        list[str] | None,
        typer.Option("--prefer", metavar="NAME", help="First this kernel, or this plugin's, where it can; repeatable."),
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option("--fault", metavar="OP", help="Get one element of this op's result wrong, to see it found."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a small model over a text, through portakernel and in plain torch, and say which kernels ran and why.

    A byte-level decoder in the shape of Llama learns a text by heart and writes on, beside the same in plain torch,
    step by step. Exits with 0 when both agree as closely as float32 rounding lets them, 1 when they do not. Then what
    would run on an H200 and an MI300X, which need not be here. With --prefer, also where that could not serve, and why.

    For example:

        portakernel demo
        portakernel demo --precision fp8 --steps 50
        portakernel demo notes.txt --device cpu --json
        portakernel demo --prefer opencl
        portakernel demo --fault rms_norm
    """
    from portakernel_kit.demo.decoder_ops import NAMES

    if fault is not None and fault not in NAMES:
        raise UnknownNameError("op of the demo", fault, NAMES, where="--fault")
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS, where="--precision")
    text = read_text(file)
    from portakernel.cli.output import page, print_json
    from portakernel_kit.demo import run as demo_run
    from portakernel_kit.demo.live import Live
    from portakernel_kit.demo.report import report

    where = _device(device)
    live = None if json else Live(page())
    with _preferring(tuple(prefer or ())):
        if live is not None:
            live.opening(text, where)
        trial = demo_run.Trial(text.data, where.torch_device or "cpu", fault, steps)
        before = trial.write(demo_run.WRITTEN_BEFORE)[0].texts
        if live is not None:
            live.before(before, trial)
        _train(trial, live)
        ours, twin = trial.outcomes()
        quantised = trial.quantise() if precision == "fp8" else None
    found = report(text, where, fault, trial.prompts, before, ours, twin, quantised, tuple(prefer or ()))
    if json:
        print_json(found.to_json())
    else:
        found.print(page())
    raise typer.Exit(0 if found.agrees else 1)


def _train(trial: Trial, live: Live | None) -> None:
    """Trains, and shows the losses of about ten steps as they come."""
    from portakernel.cli.progress import progress

    shown = max(1, trial.steps // 10)
    with progress("training", trial.steps) as tell:
        for step in trial.train():
            tell(completed=step)
            if live is not None and (step == 1 or step % shown == 0):
                live.step(step, trial)


@contextlib.contextmanager
def _preferring(names: tuple[str, ...]) -> Iterator[None]:
    """The process prefers these: gradients may be computed in threads of torch's, which no context reaches."""
    from portakernel.deciding.policies import make_layer
    from portakernel.runtime import dispatcher

    now = dispatcher()
    if not names:
        yield
        return
    now.set_process_layer(make_layer(COMMAND_LINE, (), names).check(now.registry))
    try:
        yield
    finally:
        now.set_process_layer(None)


def read_text(file: Path | None) -> Text:
    """The beginning of the file, or the text that portakernel brings.

    Raises:
        ArgumentValueError: it cannot be read, or is too short for a byte to follow another.
    """
    if file is None:
        return Text(None, (files("portakernel_kit.demo") / OWN_TEXT).read_bytes(), False)
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise ArgumentValueError(f"{file}: no such file") from error
    except OSError as error:
        raise ArgumentValueError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(data) < 2:
        holds = "is empty" if not data else "holds 1 byte"
        raise ArgumentValueError(f"{file}: {holds}; the demo needs at least 2, since each byte predicts the next")
    return Text(file, data[:MOST_BYTES], len(data) > MOST_BYTES)


def _device(name: str | None) -> Device:
    from portakernel.api import explain
    from portakernel.runtime import dispatcher

    if name is not None:
        device = dispatcher().registry.device(name)
        if device.attached:
            way_out = f"run there, with PORTAKERNEL_PREFER={device.target.vendor}"
            raise ArgumentValueError(f"--device {name} shares the tensors of {device.torch_device}: {way_out}")
        return device
    first = explain("add").request.device
    assert first is not None  # without a target, the question is about a device
    return first
