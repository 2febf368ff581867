"""Why calls that were measured decide nothing, for people: what is said of several kernels is said of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from portakernel.registry.kernel import Kernel
from portakernel.tuning.ranking import OTHER_VERSION
from portakernel.tuning.sources import versions

# How many kernels with one reason are named.
_SHOWN = 4


def by_reason(undecided: Mapping[str, int], kernels: Mapping[str, Kernel]) -> Iterator[tuple[int, str]]:
    """How many calls decide nothing, and why, the most first.

    ``undecided`` counts them by reason, as ``Measured`` does. Where a module that kernels require had another version,
    the versions that are here are named.
    """
    counts, names = Counter[str](), dict[str, list[str]]()
    for why, count in undecided.items():
        first, _, rest = why.partition(" ")
        name = first.removesuffix(":")
        text = f"{first[len(name) :]} {rest}" if name in kernels else why
        counts[text] += count
        names.setdefault(text, []).extend([name] if name in kernels else [])
    for text, count in counts.most_common():
        several = sorted(names[text])
        more = f" and {left} more" if (left := len(several) - _SHOWN) > 0 else ""
        here = _versions_here(kernels[name] for name in several) if text.endswith(OTHER_VERSION) else ""
        yield count, f"{', '.join(several[:_SHOWN])}{more}{text}{here}"


def _versions_here(kernels: Iterable[Kernel]) -> str:
    here = {name: found or "not installed" for kernel in kernels for name, found in versions(kernel).items()}
    return f" (here: {', '.join(f'{name} {found}' for name, found in sorted(here.items()))})"
