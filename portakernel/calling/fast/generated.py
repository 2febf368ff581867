"""Functions from source text: where a loop over arguments would cost more than what it decides.

Their source is known to ``linecache`` as long as they live, so that tracebacks, debuggers, profilers and
``inspect.getsource`` show it.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from portakernel.host.as_written import run_as_written

# How the name of a generated source begins, in place of a file's.
MARK = "<portakernel: "

# The number of the next source of each name: every dispatcher and every bound handle makes functions of its own. The
# first source of a name is shown without a number, so that it is called the same in every process.
_NUMBERS: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))


class Shown:
    """Keeps the lines of a source where ``linecache`` finds them, until this goes, with the functions made of it."""

    def __init__(self, source: str, origin: str) -> None:
        number = next(_NUMBERS[origin])
        self.file = f"{MARK}{origin}>" if number == 1 else f"{MARK}{origin} #{number}>"
        # without a time, which says that there is no file to compare with
        linecache.cache[self.file] = len(source), None, source.splitlines(keepends=True), self.file
        weakref.finalize(self, linecache.cache.pop, self.file, None).atexit = False


def define(source: str, name: str, origin: str, names: dict[str, Any], *, compiles: bool = False) -> Any:
    """The function ``name`` that ``source`` defines, with ``names`` as its globals.

    torch.compile looks into it only where it ``compiles``; else Python runs it, also below a frame that torch.compile
    gave up.
    """
    shown = Shown(source, origin)
    # no __name__: torch.compile would take it for a module that can be imported
    scope = {**names, "source of this function": shown}
    code = compile(source, shown.file, "exec")
    if not compiles:
        run_as_written(code)
    exec(code, scope)
    return scope[name]
