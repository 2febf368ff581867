"""What the demo prints while it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from portakernel.cli.output import Page
from portakernel.words.target import Device
from portakernel_kit.demo import decoder
from portakernel_kit.demo.report import continued

if TYPE_CHECKING:
    from portakernel_kit.demo.command import Text
    from portakernel_kit.demo.run import Trial


class Live:
    """Lines that appear as the demo goes on, in a pipe too."""

    def __init__(self, out: Page) -> None:
        self._out = out

    def opening(self, text: Text, device: Device) -> None:
        """What runs, and where."""
        size = f"the first {len(text.data)} bytes" if text.more else f"{len(text.data)} bytes"
        name = "a page of portakernel's own" if text.path is None else str(text.path)
        self._out.line(f"A byte-level decoder in the shape of Llama over {name}: {size}, float32", "strong")
        self._out.line(f"on {device.name} ({device.target}, torch device {device.torch_device})")
        sys.stdout.flush()

    def before(self, written: tuple[bytes, ...], trial: Trial) -> None:
        """What the untrained model writes, and what comes next."""
        weights = sum(tensor.numel() for tensor in trial.ours.parameters.values())
        self._out.heading(f"What its {decoder.LAYERS} layers with {weights} random weights write")
        for line in continued(trial.prompts, written):
            self._out.line(line, indent=2)
        tokens = trial.batches[0][0].numel()
        self._out.heading(f"Training: {trial.steps} steps of {tokens} bytes, on both sides in turn")
        self._out.line("   step  loss, portakernel  loss, plain torch")
        sys.stdout.flush()

    def step(self, number: int, trial: Trial) -> None:
        """The loss of both at a step."""
        ours, twin = (side.losses[number - 1].item() for side in (trial.ours, trial.twin))
        self._out.line(f"{number:7}{ours:19.4f}{twin:19.4f}")
        sys.stdout.flush()
