"""The hooks a plugin or backend can implement; each with a whole example.

A package's module is imported only when a hook that its manifest lists under ``hooks`` is needed (a backend's
``portakernel_targets`` needs no listing) or one of its kernels is first used.

Imports and hooks run in a thread of their own and are waited for within a bound (``PORTAKERNEL_PATIENCE_S``, 60 s):
after that the package rests in this process. A hook that asks portakernel for what it is itself asked for gets a
``CalledBackError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import typer

    from portakernel.deciding.decision import Decision
    from portakernel.words.target import Device

PROJECT = "portakernel"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def portakernel_targets() -> Sequence[Device]:
    """The devices of this backend's kind on this machine; empty when there are none.

    Must not raise, initialise a device context, or take long::

        @hookimpl
        def portakernel_targets():
            return [Device(Target("acme", "npu2"), name="Acme NPU 2", torch_device="npu:0", uuid="ACME-17")]
    """
    return ()


@hookspec
def portakernel_kernels() -> Sequence[Mapping[str, Any]]:
    """Kernels that cannot be listed statically, each a mapping with the keys of one ``kernels:`` entry.

    They are validated as strictly as the manifest's own::

        @hookimpl
        def portakernel_kernels():
            return [
                {"op": "add", "name": f"add_{width}", "entry": "acme.add:add", "targets": {"cpu": "any"},
                 "dtypes": {"x": ["float32"], "y": ["x"]}, "priority": 10}
                for width in installed_widths()
            ]
    """
    return ()


@hookspec
def portakernel_decided(decision: Decision) -> None:
    """A new decision was made (not: a call was served from the key table).

    An exception is logged and otherwise ignored::

        @hookimpl
        def portakernel_decided(decision):
            metrics.increment("portakernel_decisions", op=decision.request.op, kernel=str(decision.chosen))
    """


@hookspec
def portakernel_cli(app: typer.Typer) -> None:
    """Adds commands to ``portakernel``::

    @hookimpl
    def portakernel_cli(app):
        @app.command()
        def acme() -> None:
            "Shows the Acme driver's state."
            print(driver_state())
    """


HOOKS: tuple[str, ...] = ("portakernel_targets", "portakernel_kernels", "portakernel_decided", "portakernel_cli")
