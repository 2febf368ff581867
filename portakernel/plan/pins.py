"""What a plan pins of a kernel: its source, and the versions of what its manifest requires."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from portakernel.plan.plan import Pin
from portakernel.registry.kernel import Kernel
from portakernel.tuning.sources import of_files, source_digest, versions

SourceOf = Callable[[Kernel], str]


def pin(kernel: Kernel, source_of: SourceOf = source_digest) -> Pin:
    """The pin of a kernel as it is here."""
    return Pin(source_of(kernel), {name: found for name, found in versions(kernel).items() if found})


def mismatch(pinned: Pin, kernel: Kernel, source_of: SourceOf, *, elsewhere: bool = False) -> str:
    """How a kernel's source differs from its pin; empty where it does not.

    ``elsewhere``: it is to run on hardware that is not here, where the versions in the plan are taken for granted.

    Raises:
        OSError: its files cannot be read at this moment.
    """
    source = source_of(kernel)
    if pinned.source == source or (elsewhere and of_files(pinned.source) == of_files(source)):
        return ""
    told = "; ".join(_versions_told(pinned, versions(kernel)))
    return f"its source is {source} here, and {pinned.source} in the plan" + (f" ({told})" if told else "")


def note(pinned: Pin, kernel: Kernel, source_of: SourceOf, *, elsewhere: bool = False) -> str:
    """What differs and is no mismatch: versions of what is ``elsewhere``, or what the plan says of them.

    Raises:
        OSError: as ``mismatch``.
    """
    source, here = source_of(kernel), versions(kernel)
    if mismatch(pinned, kernel, source_of, elsewhere=elsewhere):
        return ""
    if pinned.source != source:
        told = "; ".join(_versions_told(pinned, here)) or "a version of what it requires is another one"
        return f"its files are those of the plan, and {told}: those of the plan are taken for granted where it runs"
    # the versions are a part of the source, which is the same
    wrong = "; ".join(
        _versions_told(Pin(source, pinned.requires), {n: v for n, v in here.items() if n in pinned.requires})
    )
    return wrong and f"{wrong}; its source is the one here, so that `requires` is not what the plan was made with"


def _versions_told(pinned: Pin, here: Mapping[str, str]) -> Iterator[str]:
    """Each module of another version than in the plan; of ``here`` what is not installed is empty."""
    for name in sorted({*pinned.requires, *here}):
        then, now = pinned.requires.get(name), here.get(name)
        if then is None:
            yield f"{name} is {now or 'not installed'} here, and the plan has no version of it"
        elif now is None:
            yield f"the plan has {name} {then}, and the kernel's source here is made with no {name}"
        elif now != then:
            yield f"{name} is {now or 'not installed'} here, and {then} in the plan"
