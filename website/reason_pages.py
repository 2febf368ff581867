"""A page for each reason code: what it means, when a kernel gets it, what `explain` prints, what to do."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from dataclasses import replace

from portakernel.claims.advice import REASONS, Reason
from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.cli import main
from portakernel.cli.advice import advice
from portakernel.cli.explain.explanation import print_explanation
from portakernel.cli.output import Page
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.deciding.decision import Decision
from portakernel.deciding.ranking import Candidate
from portakernel.matrix.table import table
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Registry
from portakernel.words.target import Target

INDEX = "reasons/index.md"


def reason_pages(registry: Registry) -> dict[str, str]:
    """The pages by their paths, the list of all codes first."""
    rows = [(f"[`{code}`]({code}.md)", reason.meaning) for code, reason in REASONS.items()]
    pages = {INDEX: "\n\n".join(["# Reasons", _INTRODUCTION, table(("code", "meaning"), rows)]) + "\n"}
    return pages | {f"reasons/{code}.md": _page(code, reason, registry) for code, reason in REASONS.items()}


_INTRODUCTION = """\
A kernel that does not serve a call says why: a code that stays, for programs to act on, and a sentence for people.
`portakernel explain`, `portakernel doctor` and the errors show them; with `--json` the code is `rejections[].code`."""


def _page(code: ReasonCode, reason: Reason, registry: Registry) -> str:
    kernel = _kernel(reason, registry) if reason.kernel else None
    blocks = [f"# {code}", reason.meaning, "## When a kernel gets it", reason.when]
    if kernel is not None:
        shown = (
            _printed(reason.command, registry) if reason.command else _told(kernel, _rejection(code, reason), registry)
        )
        blocks += ["## What explain prints", f"```{'console' if reason.command else 'text'}\n{shown}```"]
        blocks += ["" if reason.command else "What the other kernels say is left out."]
    blocks += ["## What to do", *_remedy(code, reason, kernel)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _rejection(code: ReasonCode, reason: Reason) -> Rejection:
    return Rejection(code, reason.text, reason.parameter)


def _kernel(reason: Reason, registry: Registry) -> Kernel:
    """The kernel of the example; one that does not ship here is like the reference of its op, but for its name."""
    op = reason.kernel.partition(".")[2]
    return registry.kernels.get(reason.kernel) or replace(registry.kernels[f"reference.{op}"], name=reason.kernel)


def _printed(command: str, registry: Registry) -> str:
    """What the command prints, of what ships here: other packages may be installed beside it."""
    asked = ["explain", *shlex.split(command)]
    lines = _captured(lambda: main(asked)).splitlines()
    ours = [line for line in lines if not re.search(r" \w+\.\w+$", line) or line.split()[-1] in registry.kernels]
    return "\n".join([f"$ portakernel {shlex.join(asked)}", *ours, ""])


def _told(kernel: Kernel, rejection: Rejection, registry: Registry) -> str:
    """What is printed where the kernel stands alone and is refused."""
    named = re.search(r"(?:nvidia|amd|cpu):\w+", rejection.text)
    request = ask(contract(kernel.op), Target.parse(named[0] if named else "nvidia:sm_90"))
    candidate = Candidate(kernel, "rejected", 0, (rejection,))
    return _captured(lambda: print_explanation(Page(), Decision(request, None, "", (candidate,)), registry))


def _captured(prints: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as written:
        prints()
    return written.getvalue()


def _remedy(code: ReasonCode, reason: Reason, kernel: Kernel | None) -> list[str]:
    if kernel is None:
        return [_sentence(re.sub(r"\{(\w+)(?:!r)?\}", r"*\1*", reason.remedy))]
    text = advice(kernel, _rejection(code, reason))
    told = [f"As `explain` advises here: {text}."] if text else ["Nothing about the call would make the kernel serve."]
    return [*told, _sentence(reason.instead.format(op=kernel.op))]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
