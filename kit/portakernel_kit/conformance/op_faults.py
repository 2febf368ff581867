"""What is wrong with an op itself, its reference or its contract, while a kernel is held to it: said in words."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import OutOfMemoryError, Tensor

from portakernel.contract import Contract
from portakernel.contracts import reference_module
from portakernel.text.printable import exception_text


class OpFault(Exception):  # noqa: N818 - what is reported is its message, which names what is at fault
    """The op's reference or contract is at fault, so that nothing can be said of any kernel."""


def reference_of(contract: Contract) -> Any:
    """The module of the op's formula.

    Raises:
        OpFault: it cannot be imported.
    """
    module = reference_module(contract.op)
    with blamed(f"importing the reference {module}", module):
        return importlib.import_module(module)


def asked(reference: Any, function: str) -> Callable[..., Any]:
    """A function of the reference's, which raises an ``OpFault`` in the place of whatever it raises."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        with blamed(f"the reference's {function}", reference.__name__):
            return getattr(reference, function)(*arguments, **keywords)

    return call


def counted(found: object, names: Sequence[str], what: str) -> tuple[Any, ...]:
    """What a function of the reference returned, as many tensors as there are ``names``; None stands for no tensor.

    Raises:
        OpFault: it returned others.
    """
    results = found if isinstance(found, tuple) else (found,)
    wanted = f"return {', '.join(names)}" if names else "return nothing"
    if len(results) != len(names):
        raise OpFault(f"{what} returned {len(results)} results; it has to {wanted}")
    for result, name in zip(results, names, strict=True):
        if not isinstance(result, Tensor | None):
            raise OpFault(f"{what} returned {type(result).__name__} for {name}; it has to return a tensor")
    return results


@contextmanager
def blamed(what: str, module: str = "") -> Iterator[None]:
    """Inside, whatever is raised is an ``OpFault`` of ``what``, with the last line of ``module`` that it went through.

    That a device has no memory left says nothing of the op.
    """
    try:
        yield
    except (OpFault, OutOfMemoryError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise OpFault(f"{what} raised {exception_text(error)}{_place(error, module)}") from error


def _place(error: BaseException, module: str) -> str:
    ends = tuple(f"/{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py")) if module else ()
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.replace(os.sep, "/").endswith(ends)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if ends and own else ""
