"""What the demo found, for people and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from portakernel.api import explain, stats
from portakernel.cli.output import Cell, Page
from portakernel.deciding.decision import Decision
from portakernel.runtime import callers_so_far
from portakernel.words.target import Device
from portakernel_kit.demo import decoder
from portakernel_kit.demo.run import Difference, Outcome, Quantised, differences

if TYPE_CHECKING:
    from portakernel.api import Served
    from portakernel_kit.demo.command import Text

SHOWN = 4  # of the texts
_WORD = re.compile(r"[^\W\d_]+")
ELSEWHERE = {"an H200": "nvidia:sm_90", "an MI300X": "amd:gfx942"}


@dataclass(frozen=True, slots=True)
class Report:
    """What the demo found."""

    text: Text
    device: Device
    fault: str | None
    prompts: tuple[bytes, ...]
    before: tuple[bytes, ...]
    ours: Outcome
    twin: Outcome
    differences: tuple[Difference, ...]
    quantised: Quantised | None
    decisions: tuple[Decision, ...]
    elsewhere: tuple[tuple[str, Decision], ...]
    stats: tuple[Served, ...]
    prefer: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every difference is within its tolerance."""
        return all(difference.within for difference in self.differences)

    @property
    def words(self) -> list[str]:
        """The whole words that were written: of a text's first and last one a part may be missing."""
        return [word for text in self.ours.texts for word in _WORD.findall(shown(text))[1:-1]]

    @property
    def known_words(self) -> list[str]:
        """Those of them that stand in the text that was read."""
        there = set(_WORD.findall(shown(self.text.data)))
        return [word for word in self.words if word in there]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data; stable."""
        device, quantised = self.device, self.quantised
        return {
            "agrees": self.agrees,
            "file": None if self.text.path is None else str(self.text.path),
            "bytes": len(self.text.data),
            "truncated": self.text.more,
            "device": {"target": str(device.target), "name": device.name, "torch_device": device.torch_device},
            "dtype": "float32",
            "fault": self.fault,
            "losses": {"portakernel": list(self.ours.losses), "torch": list(self.twin.losses)},
            "prompts": _all_shown(self.prompts),
            "texts_before_training": _all_shown(self.before),
            "texts": {"portakernel": _all_shown(self.ours.texts), "torch": _all_shown(self.twin.texts)},
            "words": {"written": len(self.words), "in_file": len(self.known_words)},
            "tokens_per_s": {
                "training": {"portakernel": self.ours.training_tokens_per_s, "torch": self.twin.training_tokens_per_s},
                "writing": {"portakernel": self.ours.writing_tokens_per_s, "torch": self.twin.writing_tokens_per_s},
            },
            "differences": [
                {"what": d.what, "relative": d.relative, "tolerance": d.tolerance, "within": d.within}
                for d in self.differences
            ],
            "fp8": None
            if quantised is None
            else {
                "loss": quantised.loss, "float32_loss": quantised.exact_loss, "same_choice": quantised.same_choice
            },
            "prefer": list(self.prefer),
            "left_out": [
                {"op": decision.request.op, "phase": str(decision.request.phase), "reasons": reasons}
                for decision, reasons in self.left_out()
            ],
            "decisions": [decision.to_json() for decision in self.decisions],
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
        }  # fmt: skip

    def left_out(self) -> Iterator[tuple[Decision, list[str]]]:
        """The decisions that did not go to what was preferred, and why."""
        for decision in self.decisions if self.prefer else ():
            chosen = decision.chosen
            if chosen is None or not {chosen.name, chosen.plugin} & set(self.prefer):
                yield decision, list(_reasons(decision, self.prefer))

    def print(self, out: Page) -> None:
        """Prints for people what came after training."""
        self._print_text(out)
        self._print_speed(out)
        self._print_calls(out)
        self._print_left_out(out)
        self._print_differences(out)
        if self.quantised is not None:
            self._print_quantised(out, self.quantised)
        for place, target in ELSEWHERE.items():
            out.heading(f"The same on {place} ({target}), in bfloat16, asked from here")
            rows = [_row(decision, ()) for where, decision in self.elsewhere if where == place]
            out.table(rows, indent=2)
        out.line()
        if self.agrees:
            out.line("portakernel and plain torch agree.", "good")
        else:
            why = f", as --fault {self.fault} asked" if self.fault else ""
            out.line(
                f"portakernel and plain torch DISAGREE{why}: the difference is more than rounding explains.", "bad"
            )

    def _print_calls(self, out: Page) -> None:
        out.heading("Which kernel served each op, and why")
        calls = {(served.op, served.phase, served.kernel): served.calls for served in self.stats}
        rows = []
        for decision in self.decisions:
            request, chosen = decision.request, decision.chosen
            count = calls.get((request.op, str(request.phase), chosen.name if chosen else ""), 0)
            rows.append(_row(decision, (str(request.phase), f"{count} calls")))
        out.table(rows, indent=2)

    def _print_left_out(self, out: Page) -> None:
        if self.prefer:
            rows = [(d.request.op, str(d.request.phase), _name(d), "; ".join(why)) for d, why in self.left_out()]
            names = " and ".join(self.prefer)
            out.heading(f"Where {names} could not serve, and why" if rows else f"{names} served all of it")
            if rows:
                out.table(rows, indent=2)

    def _print_text(self, out: Page) -> None:
        out.heading(f"What it writes now (of {len(self.ours.texts)} texts)")
        for line in continued(self.prompts, self.ours.texts):
            out.line(line, indent=2)
        known, written = len(self.known_words), len(self.words)
        same = sum(own == other for own, other in zip(self.ours.texts, self.twin.texts, strict=True))
        out.line()
        out.line(f"{known} of all {written} words it wrote are the text's: so small a model learns it by heart.")
        out.line(f"Plain torch, with the same weights, writes {same} of the {len(self.ours.texts)} texts alike.")

    def _print_speed(self, out: Page) -> None:
        out.heading("How fast: bytes per second, by the median of steps taken in turn")
        ours, twin = self.ours, self.twin
        pairs = {
            "training": (ours.training_tokens_per_s, twin.training_tokens_per_s),
            "writing": (ours.writing_tokens_per_s, twin.writing_tokens_per_s),
        }
        rows = [(what, f"{own:.0f}", f"{other:.0f}", f"{own / other:.2f}") for what, (own, other) in pairs.items()]
        out.table(rows, ("", "portakernel", "plain torch", "ratio"), indent=2, right=(1, 2, 3))

    def _print_differences(self, out: Page) -> None:
        out.heading("Difference from the same in plain torch, and what float32 rounding explains")
        rows = []
        for difference in self.differences:
            verdict = Cell("ok", "good") if difference.within else Cell("TOO LARGE", "bad")
            rows.append((difference.what, f"{difference.relative:.1e}", f"{difference.tolerance:.1e}", verdict))
        out.table(rows, indent=2, right=(1, 2))

    def _print_quantised(self, out: Page, quantised: Quantised) -> None:
        out.heading("The linear layers in FP8 (float8_e4m3fn, a scale for each row of weights and activations)")
        change = 100 * (quantised.loss / quantised.exact_loss - 1)
        out.line(
            f"loss {quantised.loss:.5f} on another batch of the text, {quantised.exact_loss:.5f} in float32"
            f" ({change:+.2f} %); the most likely byte is the same in {100 * quantised.same_choice:.1f} % of places",
            indent=2,
        )
        for decision in self.decisions:
            if decision.request.op in ("quantize_fp8", "scaled_mm"):
                out.line(f"{decision.request}: {_name(decision)} ({decision.why})", indent=2)
                for shortfall in decision.shortfalls:
                    out.line(shortfall.text, "doubt", indent=4)


def report(
    text: Text,
    device: Device,
    fault: str | None,
    prompts: Sequence[bytes],
    before: tuple[bytes, ...],
    ours: Outcome,
    twin: Outcome,
    quantised: Quantised | None,
    prefer: tuple[str, ...] = (),
) -> Report:
    """What there is to say of both runs."""
    positions = decoder.BATCH * min(decoder.CONTEXT, len(text.data) - 1)
    found = tuple(differences(ours, twin, positions))
    low = () if quantised is None else ("quantize_fp8", "scaled_mm")
    return Report(
        text=text,
        device=device,
        fault=fault,
        prompts=tuple(prompts),
        before=before,
        ours=ours,
        twin=twin,
        differences=found,
        quantised=quantised,
        decisions=tuple(_decisions()),
        elsewhere=tuple(_elsewhere(low)),
        stats=stats(),
        prefer=prefer,
    )


def _decisions() -> Iterator[Decision]:
    """One decision for each op, phase and kernel that a call came to, in the order of the ops."""
    known: dict[tuple[str, str, str], Decision] = {}
    for caller in callers_so_far():
        for placement in list(caller.table.entries.values()):
            request = placement.decision.request
            if placement.count():
                known.setdefault((request.op, str(request.phase), placement.kernel.name), placement.decision)
    yield from known.values()


def _elsewhere(low_precision: tuple[str, ...]) -> Iterator[tuple[str, Decision]]:
    """What would run on hardware that is not here."""
    from portakernel_kit.demo.decoder_ops import NAMES

    for place, target in ELSEWHERE.items():
        for op in (*NAMES, *low_precision):
            dtype = "float8_e4m3fn" if op == "scaled_mm" else "bfloat16"
            yield place, explain(op, target=target, dtype=dtype)


def _reasons(decision: Decision, names: tuple[str, ...]) -> Iterator[str]:
    """Why the kernels and plugins of these names did not serve, each in a sentence."""
    for name in names:
        of_name = [c for c in decision.candidates if name in (c.kernel.name, c.kernel.plugin)]
        if not of_name:
            yield f"{name} has no kernel for {decision.request.op}"
        for candidate in of_name:
            for rejection in candidate.rejections:
                yield f"{candidate.kernel.name}: {rejection.code}: {rejection.text}"


def _row(decision: Decision, more: tuple[str, ...]) -> tuple[str | Cell, ...]:
    return (decision.request.op, Cell(_name(decision), "good"), *more, decision.why)


def _name(decision: Decision) -> str:
    return decision.chosen.name if decision.chosen is not None else "none"


def continued(prompts: Sequence[bytes], texts: Sequence[bytes]) -> list[str]:
    """Some of the texts, each on a line behind its prompt."""
    step = len(texts) // SHOWN
    return [f"{_on_a_line(prompts[i])}|{_on_a_line(texts[i])}" for i in range(0, step * SHOWN, step)]


def _on_a_line(text: bytes) -> str:
    return "".join(letter if letter.isprintable() else "·" for letter in shown(text).replace("\n", " "))


def _all_shown(texts: Sequence[bytes]) -> list[str]:
    return [shown(text) for text in texts]


def shown(text: bytes) -> str:
    """Bytes as text; what is not UTF-8 becomes a replacement character."""
    return text.decode("utf-8", "replace")
