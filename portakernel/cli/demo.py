"""``portakernel demo``: a residual block over a text, through portakernel and in plain torch, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import Json
from portakernel.errors import ArgumentValueError, UnknownNameError

if TYPE_CHECKING:
    from portakernel.api import Served
    from portakernel.cli.output import Page
    from portakernel.cli.residual_block import Difference, Outcome
    from portakernel.decision import Decision
    from portakernel.target import Device

DEFAULT_FILE = Path("README.md")
MOST_BYTES = 2049  # one more than the positions that the block sees: each byte predicts the next
OPS = ("rms_norm", "add")
ELSEWHERE = {"an H200": "nvidia:sm_90", "an MI300X": "amd:gfx942"}


@dataclass(frozen=True, slots=True)
class Text:
    """What was read of a file; ``more`` when there was more."""

    path: Path
    data: bytes
    more: bool


def command(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Any file to read as text [default: README.md].")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="cpu|cuda:0", help="Where to run [default: this machine's first device]."),
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(
            "--fault", metavar="rms_norm|add", help="Get one element of this op's result wrong, to see it found."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a small model over a text, through portakernel and in plain torch, and say which kernels ran and why.

    A pre-norm residual block predicts each next byte: forward, and one training step. Exits with 0 when portakernel and
    plain torch agree as closely as float32 rounding lets them, 1 when they do not. Then the same decisions for an H200
    and an MI300X, which need not be here.

    For example:

        portakernel demo
        portakernel demo notes.txt --device cpu --json
        portakernel demo --fault rms_norm
    """
    if fault is not None and fault not in OPS:
        raise UnknownNameError("op of the demo", fault, OPS, where="--fault")
    text = read_text(file)
    from portakernel.api import stats
    from portakernel.cli import residual_block
    from portakernel.cli.output import page, print_json

    where = _device(device)
    name = where.torch_device or "cpu"
    ours = residual_block.run(text.data, name, residual_block.through_portakernel(fault))
    twin = residual_block.run(text.data, name, residual_block.plain_torch())
    found = list(residual_block.differences(ours, twin))
    allowed = residual_block.tolerance(len(text.data) - 1)
    report = Report(text, where, fault, ours, found, allowed, _decisions(text, name), _elsewhere(text), stats())
    if json:
        print_json(report.to_json())
    else:
        report.print(page())
    raise typer.Exit(0 if report.agrees else 1)


@dataclass(frozen=True, slots=True)
class Report:
    """What the demo found."""

    text: Text
    device: Device
    fault: str | None
    outcome: Outcome
    differences: list[Difference]
    tolerance: float
    decisions: list[tuple[tuple[str, ...], Decision]]
    elsewhere: list[tuple[str, Decision]]
    stats: tuple[Served, ...]

    @property
    def agrees(self) -> bool:
        """Whether every difference is within the tolerance."""
        return all(difference.relative <= self.tolerance for difference in self.differences)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data; stable."""
        return {
            "agrees": self.agrees,
            "file": str(self.text.path),
            "bytes": len(self.text.data),
            "truncated": self.text.more,
            "device": {
                "target": str(self.device.target),
                "name": self.device.name,
                "torch_device": self.device.torch_device,
            },
            "dtype": "float32",
            "fault": self.fault,
            "loss": {"before": self.outcome.loss.item(), "after": self.outcome.loss_after.item()},
            "tolerance": self.tolerance,
            "differences": [
                {"what": d.what, "relative": d.relative, "within": d.relative <= self.tolerance}
                for d in self.differences
            ],
            "decisions": [{"phases": list(phases), **decision.to_json()} for phases, decision in self.decisions],
            "elsewhere": [decision.to_json() for _, decision in self.elsewhere],
            "stats": [
                {
                    "op": served.op,
                    "phase": served.phase,
                    "target": served.target,
                    "kernel": served.kernel,
                    "calls": served.calls,
                    "fallback": list(served.fallback),
                }
                for served in self.stats
            ],
        }

    def print(self, out: Page) -> None:
        """Prints the report for people."""
        from portakernel.cli.decisions import print_decision

        size = f"the first {len(self.text.data)} bytes" if self.text.more else f"{len(self.text.data)} bytes"
        out.line(f"A pre-norm residual block over {self.text.path}: {size}, float32", "strong")
        out.line(f"on {self.device.name} ({self.device.target}, torch device {self.device.torch_device})")
        for phases, decision in self.decisions:
            out.heading(f"{decision.request.op} ({', '.join(phases)})")
            print_decision(out, decision, indent=2)
        self._print_differences(out)
        for place, decision in self.elsewhere:
            out.heading(f"{decision.request.op} on {place} ({decision.request.target}), asked from here")
            print_decision(out, decision, indent=2)
        out.heading("Calls so far (portakernel.stats())")
        rows = [(s.op, s.phase, s.kernel, s.target, f"{s.calls} call{'s' * (s.calls != 1)}") for s in self.stats]
        out.table(rows, indent=2)
        out.line()
        if self.agrees:
            out.line("portakernel and plain torch agree.", "good")
        else:
            why = f", as --fault {self.fault} asked" if self.fault else ""
            out.line(
                f"portakernel and plain torch DISAGREE{why}: the difference is more than rounding explains.", "bad"
            )

    def _print_differences(self, out: Page) -> None:
        from portakernel.cli.output import Cell

        out.heading(
            f"Difference from the same in plain torch (at most {self.tolerance:.1e}, which float32 rounding explains)"
        )
        rows = []
        for difference in self.differences:
            within = difference.relative <= self.tolerance
            verdict = Cell("ok", "good") if within else Cell("TOO LARGE", "bad")
            rows.append((difference.what, f"{difference.relative:.1e}", verdict))
        out.table(rows, indent=2, right=(1,))
        before, after = self.outcome.loss.item(), self.outcome.loss_after.item()
        out.line(f"loss {before:.4f} before the training step, {after:.4f} after it", indent=2)


def read_text(path: Path | None) -> Text:
    """The beginning of the file.

    Raises:
        ArgumentValueError: it cannot be read, or is too short for a byte to follow another.
    """
    file = DEFAULT_FILE if path is None else path
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        if path is None:
            raise ArgumentValueError(f"there is no {file} here; name a file: portakernel demo FILE") from error
        raise ArgumentValueError(f"{file}: no such file") from error
    except OSError as error:
        raise ArgumentValueError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(data) < 2:
        holds = "is empty" if not data else "holds 1 byte"
        raise ArgumentValueError(f"{file}: {holds}; the demo needs at least 2, since each byte predicts the next")
    return Text(file, data[:MOST_BYTES], len(data) > MOST_BYTES)


def _device(name: str | None) -> Device:
    from portakernel.api import explain
    from portakernel.cli.check import find_device
    from portakernel.runtime import dispatcher

    if name is not None:
        device = find_device(dispatcher().registry, name)
        if device.attached:
            way_out = f"run there, with PORTAKERNEL_PREFER={device.target.vendor}"
            raise ArgumentValueError(f"--device {name} shares the tensors of {device.torch_device}: {way_out}")
        return device
    first = explain("add").request.device
    assert first is not None  # without a target, the question is about a device
    return first


def _decisions(text: Text, device: str) -> list[tuple[tuple[str, ...], Decision]]:
    """The decisions for the calls that ran; phases with one outcome stand together."""
    import torch

    from portakernel.api import explain
    from portakernel.cli.residual_block import EPS, WIDTH

    x = torch.empty(len(text.data) - 1, WIDTH, device=device)
    asked = [
        *(
            (phase, explain("rms_norm", x, x[0], phase=phase, eps=EPS))
            for phase in ("inference", "training", "backward")
        ),
        *((phase, explain("add", x, x, phase=phase)) for phase in ("inference", "training")),
    ]
    grouped: dict[tuple[Any, ...], list[tuple[str, Decision]]] = {}
    for phase, decision in asked:
        outcome = tuple((c.kernel.name, c.status, c.rejections) for c in decision.candidates)
        grouped.setdefault((decision.request.op, decision.why, outcome), []).append((phase, decision))
    return [(tuple(phase for phase, _ in several), several[0][1]) for several in grouped.values()]


def _elsewhere(text: Text) -> list[tuple[str, Decision]]:
    from portakernel.api import explain
    from portakernel.cli.residual_block import WIDTH

    shape = {"x": (len(text.data) - 1, WIDTH)}
    return [
        (place, explain(op, target=target, dtype="float32", shape=shape))
        for place, target in ELSEWHERE.items()
        for op in OPS
    ]
