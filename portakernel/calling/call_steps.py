"""The functions that a repeated call goes through, from ``portakernel.ops`` to the kernel's own, as source text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.generated import MARK
from portakernel.calling.fast.keys import Keys
from portakernel.calling.launcher import launcher
from portakernel.claims.request import Phase
from portakernel.deciding.decision import Decision


@dataclass(frozen=True, slots=True)
class Step:
    """A function on the way: its name, what it is there for, where it stands, its source; without one, why."""

    name: str
    role: str
    file: str = ""
    line: int = 0
    source: str = ""
    missing: str = ""

    @classmethod
    def of(cls, name: str, role: str, function: Callable[..., Any]) -> Step:
        """A function's step; one that is not written in Python has no source."""
        function = inspect.unwrap(function)
        try:
            lines, line = inspect.getsourcelines(function)
            return cls(name, role, inspect.getfile(function), max(line, 1), "".join(lines))
        except (OSError, TypeError):
            return cls(name, role, missing=f"{type(function).__name__}, not written in Python")


def steps(caller: OpCaller, public: Callable[..., Any], decision: Decision) -> Iterator[Step]:
    """The functions that a repeated call of the decision's kind goes through, in order; ``public`` is the op's."""
    op, request, kernel = caller.contract.op, decision.request, decision.chosen
    role = "the op: recognises the call's form, makes its key, finds its kernel"
    yield Step.of(f"portakernel.ops.{op}", role, public)
    scope = caller.expressions
    if isinstance(scope, Keys):
        key = scope[tuple(request.values[name] for name in caller.contract.choosers)]
        yield Step.of("key", "the key of calls with these values", key)
        names = dict(key.__globals__)
    else:
        names = scope.names
    decide = names["_judge"].__self__.decide
    yield Step.of("decide", "what the shapes decide, for those that were not seen lately; `_judged` keeps it", decide)
    asked = {"layout": "what strides decide", "aligned": "what addresses decide", "check": "what a plugin's check says"}
    for name, member in names.items():
        kind = name.removeprefix("_").partition("_")[0]
        if inspect.isfunction(member) and kind in asked and member.__code__.co_filename.startswith(MARK):
            yield Step.of(name, asked[kind], member)
    if kernel is None:
        return
    entry = (kernel.backward if request.phase is Phase.BACKWARD else None) or kernel.entry
    readiness = caller.dispatcher.readiness
    for failure in readiness.not_installed(kernel) or filter(None, [readiness.load(kernel, entry)]):
        yield Step(entry, f"{kernel.name} itself", missing=failure.text)
        return
    role = f"hands the arguments to {kernel.name}, by position and by keyword as it takes them"
    yield Step.of("launch", role, launcher(caller.contract, kernel, request, caller.dispatcher))
    yield Step.of(entry, f"{kernel.name} itself", caller.dispatcher.entry(entry))
