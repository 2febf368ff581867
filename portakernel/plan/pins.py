"""What a plan pins of a kernel: its source, and the versions of what its manifest requires."""

from __future__ import annotations

from collections.abc import Callable

from portakernel.plan.plan import Pin
from portakernel.registry.kernel import Kernel
from portakernel.tuning.sources import source_digest, versions

SourceOf = Callable[[Kernel], str]


def pin(kernel: Kernel, source_of: SourceOf = source_digest) -> Pin:
    """The pin of a kernel as it is here."""
    return Pin(source_of(kernel), {name: found for name, found in versions(kernel).items() if found})


def mismatch(pinned: Pin, here: Pin) -> str:
    """How a kernel's source differs from its pin; empty where it does not."""
    if pinned.source == here.source:
        return ""
    versions = "; ".join(other_versions(pinned, here))
    return f"its source is {here.source} here, and {pinned.source} in the plan" + (f" ({versions})" if versions else "")


def other_versions(pinned: Pin, here: Pin) -> list[str]:
    """Each module whose version is another one than in the plan."""
    return [
        f"{name} is {here.requires.get(name, 'not installed')} here, and {found} in the plan"
        for name, found in pinned.requires.items()
        if here.requires.get(name) != found
    ]
