"""What is warmed up and what came of it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from portakernel.claims.call_layout import CallLayout
from portakernel.claims.request import Request
from portakernel.text.printable import brief


@dataclass(frozen=True, slots=True)
class Call:
    """A call in words, as ``explain`` and ``warmup`` take them: an op with dtypes, shapes and scale formats.

    ``device`` is torch's name for it, this machine's first accelerator where it is not given. ``training`` asks for
    gradients too, ``forward_ad`` for tangents (forward mode), ``kernel`` for one kernel or plugin alone; ``parameters``
    are the op's keyword arguments. ``layout`` says what is not plain about tensors' memory, as ``explain``'s ``facts``
    do (``{"x.contiguous": False}``), ``strides`` the same in numbers of elements (``{"x": (8192, 1)}``); without them
    tensors are contiguous. ``count`` says how often a workload makes it, beside others.
    """

    op: str
    dtype: Mapping[str, str] | str
    shape: Mapping[str, Sequence[int]]
    format: Mapping[str, str] | str | None = None
    device: str | None = None
    training: bool = False
    kernel: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    count: int = 1
    layout: Mapping[str, int] = field(default_factory=dict[str, int])
    strides: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    forward_ad: bool = False

    @property
    def memory(self) -> CallLayout:
        """How its tensors lie.

        Raises:
            UnknownNameError, ArgumentTypeError, ArgumentValueError: no tensors of these shapes lie so.
        """
        return CallLayout.of(self.op, self.shape, self.layout, self.strides)

    def __str__(self) -> str:
        given = (
            (each.name, getattr(self, each.name)) for each in fields(self) if each.name != "count" or self.count > 1
        )
        words = (f"{name}={value!r}" for name, value in given if value)
        return f"Call({', '.join(words)})"

    def __repr__(self) -> str:
        return brief(str(self))


@dataclass(frozen=True, slots=True)
class WarmCall:
    """A kind of call, the kernel that serves it from now on, and how often one run makes it.

    ``request`` is the call itself, or of a function's calls the first that was ever seen of its kind: calls are of one
    kind when one choice serves them, whatever their sizes. ``fallback`` are the kernels that were to go before.
    """

    request: Request
    kernel: str
    calls: int
    fallback: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(f"<WarmCall {self.kernel}, {self.calls} times: {self.request}>")


@dataclass(frozen=True, slots=True)
class Warmup:
    """The outcome of a warm-up.

    ``calls`` says which kernel serves what; ``built`` are kernels that are built now, ``declined`` those that could not
    be, with the reason; ``ahead`` is what was compiled side by side before the first call, ``compiled`` what calls made
    compile, or load. ``failed`` are the calls that could not be made, with the compiler's diagnosis or the error.
    ``settled`` is true when the last of ``runs`` runs decided and compiled nothing: then neither does the next one, if
    it makes the same calls. ``interrupted``: the command was ended before that; which calls are warm is not known.
    """

    calls: tuple[WarmCall, ...]
    built: tuple[str, ...]
    declined: tuple[tuple[str, str], ...]
    compiled: tuple[str, ...]
    runs: int
    settled: bool
    seconds: float
    ahead: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The warm-up as JSON-ready data; stable."""
        return {
            "calls": [
                {
                    "phase": str(call.request.phase),
                    "kernel": call.kernel,
                    "calls": call.calls,
                    "fallback": list(call.fallback),
                    "request": call.request.to_json(),
                }
                for call in self.calls
            ],
            "built": list(self.built),
            "declined": dict(self.declined),
            "ahead": list(self.ahead),
            "compiled": list(dict.fromkeys(self.compiled)),
            "failed": dict(self.failed),
            "runs": self.runs,
            "settled": self.settled,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
        }

    def failures(self) -> list[str]:
        """Each call that could not be made with its reason, whose further lines stand below it."""
        return [f"{call}: {error}".replace("\n", "\n    ") for call, error in self.failed]

    def __repr__(self) -> str:
        state = "settled" if self.settled else "not settled"
        counts = {"built": len(self.built), "not built": len(self.declined), "failed": len(self.failed)}
        counted = [f"{count} {what}" for what, count in counts.items() if count]
        calls = f"{len(self.calls)} kind{'s' * (len(self.calls) != 1)} of calls"
        return brief(f"<Warmup {state} after {self.runs} runs: {', '.join([calls, *counted])}>")

    def __str__(self) -> str:
        kinds = "1 kind of call is" if len(self.calls) == 1 else f"{len(self.calls)} kinds of calls are"
        end = "" if self.settled else "; the last run still decided or compiled something new"
        lines = [f"{kinds} warm after {self.runs} runs in {self.seconds:.1f} s{end}"]
        if self.interrupted:
            lines = [f"Interrupted after {self.seconds:.1f} s; this is what was built and compiled until then."]
        width = max((len(call.kernel) for call in self.calls), default=0)
        lines += [
            f"  {call.kernel:<{width}}  {call.request}"
            + (f", {call.calls} times" if call.calls != 1 else "")
            + (f", in the place of {', '.join(call.fallback)}" if call.fallback else "")
            for call in self.calls
        ]
        lines += [f"  built {name}" for name in self.built]
        lines += [f"  not built {name}: {reason}" for name, reason in self.declined]
        lines += [f"  compiled ahead {call}" for call in self.ahead]
        lines += [f"  compiled {name}" for name in dict.fromkeys(self.compiled)]
        lines += [f"  failed {failure}" for failure in self.failures()]
        return "\n".join(lines)
