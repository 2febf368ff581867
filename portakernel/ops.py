"""The public ops: ``portakernel.ops.rms_norm(x, weight)``.

A function is made when its op is first used; ``ops.pyi`` holds their signatures for editors.
"""

from __future__ import annotations

from typing import Any

from portakernel.host.as_written import as_written
from portakernel.host.forks import unsplit


@as_written
def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with unsplit(f"making ops.{name}"):
        from portakernel.runtime import caller, contract_of

        described = contract_of(name)  # an unknown op is told so before torch is imported
        from portakernel.calling.observers import of_process
        from portakernel.calling.public import public_function

        function = public_function(caller(name))
        if of_process() is not None:
            from portakernel.torch_bridge.call_kinds import watched

            function = watched(function, described)
        # two threads may come first together: all shall have one function
        return globals().setdefault(name, function)


def __dir__() -> list[str]:
    from portakernel.runtime import dispatcher

    return sorted(dispatcher().registry.ops)
