"""Architectures: their vendors' spellings, lines of descent, families, and the selectors that manifests write.

A selector is one of ``sm_90`` (that one), ``sm_80+`` (that and later members of its line), ``sm_80..sm_90`` (a range of
one line), ``cdna3`` (a family of ``backend.yaml``), ``any``, and NVIDIA's suffixes ``sm_90a`` (that exact arch) and
``sm_100f`` (that and later members of the same major version).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from portakernel.errors import ArgumentValueError, UnknownNameError
from portakernel.words.products import is_called, letters, plain, spelled

_SM = re.compile(r"(sm_\d+)([af])")
_GFX = re.compile(r"gfx(\d{1,2})([0-9a-f])([0-9a-f])")
# What AMD's driver prints behind an arch: features that a device has switched on or off.
_FEATURES = re.compile(r"(:[a-z]\w*[+-])*")
_NUMBERED = re.compile(r"([a-z]+[_-]?)(\d+)")


def normalise(arch: str) -> str:
    """``arch`` without flags and suffixes: ``gfx942:sramecc+:xnack-`` is ``gfx942``, ``sm_90a`` is ``sm_90``."""
    base = arch.strip().partition(":")[0]
    suffixed = _SM.fullmatch(base)
    return suffixed[1] if suffixed else base


def surplus(arch: str) -> str:
    """What stands behind ``arch`` and means nothing: anything but a device's features, which AMD alone prints."""
    base, colon, rest = arch.strip().partition(":")
    return "" if base.startswith("gfx") and _FEATURES.fullmatch(colon + rest) else colon + rest


def respelled(arch: str) -> str:
    """``arch`` as NVIDIA writes it, where it is one with a suffix and case or dashes alone are otherwise: ``SM90a``."""
    suffixed = re.fullmatch(r"sm(\d+)([af])", spelled(arch))
    return f"sm_{suffixed[1]}{suffixed[2]}" if suffixed else arch


def _number(arch: str) -> tuple[str, tuple[int, ...]] | None:
    """The naming scheme of ``arch`` and its place in it, or None for names that carry no number."""
    if gfx := _GFX.fullmatch(arch):
        return "gfx", (int(gfx[1]), int(gfx[2], 16), int(gfx[3], 16))
    numbered = _NUMBERED.fullmatch(arch)
    if numbered and numbered[1] != "gfx":
        return numbered[1], (int(numbered[2]),)
    return None


@dataclass(frozen=True, slots=True)
class Membership:
    """Whether an arch is inside a selector; ``note`` says on what ground when the arch is not in the vendor's list."""

    inside: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Selector:
    """A set of one vendor's archs: the union of ``include`` less ``exclude``."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = ", ".join(self.include)
        return f"{text} except {', '.join(self.exclude)}" if self.exclude else text


@dataclass(frozen=True, slots=True)
class ArchSpace:
    """One vendor's architectures: lines of descent (oldest first), families and products, from ``backend.yaml``."""

    vendor: str
    lines: tuple[tuple[str, ...], ...]
    families: Mapping[str, tuple[str, ...]]
    open_ended: bool = False
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def archs(self) -> tuple[str, ...]:
        """Every listed arch, line by line, then those that only a family names."""
        listed = dict.fromkeys(arch for line in self.lines for arch in line)
        listed.update(dict.fromkeys(arch for members in self.families.values() for arch in members))
        return tuple(listed)

    def family(self, arch: str) -> str | None:
        """The family that lists ``arch``."""
        return next((name for name, members in self.families.items() if arch in members), None)

    def meant(self, name: str) -> tuple[str, ...]:
        """The archs that people may mean by ``name``, an arch's own or a product's; several where it is in doubt."""
        if name in self.archs:
            return (name,)
        wanted = {spelled(name), plain(name, self.vendor)}
        named = [arch for arch in self.archs if spelled(arch) in wanted]
        sold = [
            arch for arch, names in self.products.items() if any(is_called(one, name, self.vendor) for one in names)
        ]
        return tuple(dict.fromkeys(named or sold))

    def described(self) -> str:
        """Every arch on a line of its own, with the products that have it."""
        width = max(map(len, self.archs), default=0)
        lines = (f"  {arch:<{width}}  {', '.join(self.products.get(arch, ()))}".rstrip() for arch in self.archs)
        return "\n".join(lines)

    def is_newer(self, arch: str) -> bool:
        """Whether an unlisted ``arch`` comes after the end of the line it belongs to."""
        line = self._line(arch)
        return line is not None and arch not in line and _order(arch) > _order(line[-1])

    def check(self, arch: str, *, where: str = "", hint: str = "") -> str:
        """``arch`` itself, when it is listed, newer than its line, or of an open-ended vendor.

        Raises:
            UnknownNameError: neither; offers the nearest, and ``hint``.
            ArgumentValueError: it is a family.
        """
        if self.open_ended or arch in self.archs or self.is_newer(arch):
            return arch
        if arch in self.families:
            prefix = f"{where}: " if where else ""
            members = ", ".join(self.families[arch])
            raise ArgumentValueError(
                f"{prefix}{arch!r} is a family of {self.vendor}'s archs; name one of them: {members}"
            )
        raise self.unknown(arch, where=where, hint=hint)

    def unknown(self, arch: str, *, where: str = "", hint: str = "") -> UnknownNameError:
        """The error for an arch that is not listed; offers the nearest, and ``hint``."""
        known = (*self.archs, *self.families)
        written = respelled(arch)
        if written != arch and normalise(written) in self.archs:
            return UnknownNameError(f"{self.vendor} arch", arch, known, where=where, hint=hint, meant=written)
        if meant := self.meant(arch):
            hint = f"It is {' or '.join(meant)}: an arch is written here. {hint}".strip()
        # an h300 is like no sm_100, near as the letters may be
        foreign = any(map(str.isdigit, arch)) and letters(arch) not in map(letters, known)
        offer = f"known: {', '.join(sorted(known))}" if foreign else ""
        return UnknownNameError(f"{self.vendor} arch", arch, known, where=where, hint=hint, instead=offer)

    def parse(self, texts: Iterable[str], exclude: Iterable[str] = (), *, where: str = "") -> Selector:
        """A selector over this vendor, every name in it checked.

        Raises:
            UnknownNameError: a name that is no arch and no family of this vendor.
            ArgumentValueError: a range over two lines, or backwards.
        """
        include, minus = tuple(texts), tuple(exclude)
        for text in (*include, *minus):
            for error in self.faults(text, where=where):
                raise error
        return Selector(include, minus)

    def membership(self, selector: Selector, arch: str, *, prebuilt: bool = False) -> Membership:
        """Whether ``arch`` is in ``selector``.

        An arch newer than the list is inside ``sm_80+`` for kernels compiled from source on the device, and outside
        for ``prebuilt`` ones, which hold no code for it.
        """
        if any(self._matches(term, arch, False) for term in selector.exclude):
            return Membership(False)
        if not any(self._matches(term, arch, prebuilt) for term in selector.include):
            if prebuilt and any(self._matches(term, arch, False) for term in selector.include):
                return Membership(
                    False, f"{arch} is newer than the listed archs, and a prebuilt kernel has no code for it"
                )
            return Membership(False)
        if self.open_ended or arch in self.archs:
            return Membership(True)
        return Membership(
            True, f"{arch} is not among the listed {self.vendor} archs; taken as a later member of its line"
        )

    def faults(self, term: str, *, where: str = "") -> Iterator[UnknownNameError | ArgumentValueError]:
        """An error for everything that keeps ``term`` out of a selector."""
        sound = True
        if more := surplus(term):
            prefix, arch = f"{where}: " if where else "", term.removesuffix(more)
            yield ArgumentValueError(f"{prefix}{term!r} ends with {more!r}, which means nothing; write {arch!r}")
        for arch in self._named(term):
            try:
                self.check(arch, where=where)
            except (UnknownNameError, ArgumentValueError) as error:
                sound = False
                yield error
        first, dots, last = term.partition("..")
        if sound and dots and term not in self.families:
            lines = [line for line in self.lines if first in line and last in line]
            if not lines or lines[0].index(first) > lines[0].index(last):
                prefix = f"{where}: " if where else ""
                text = f"range {term!r} is not within one line of {self.vendor}'s archs, oldest first"
                yield ArgumentValueError(f"{prefix}{text}")

    def later_than_listed(self, term: str) -> Iterator[tuple[str, str]]:
        """Each arch in ``term`` that is accepted as a later member of a line, with the last that is listed."""
        for arch in self._named(term):
            if not self.open_ended and self.is_newer(arch) and (line := self._line(arch)):
                yield arch, line[-1]

    def _named(self, term: str) -> tuple[str, ...]:
        """The archs that ``term`` names one by one."""
        if term == "any" or term in self.families:
            return ()
        first, dots, last = term.partition("..")
        if dots:
            return first, last
        # "sm_90a+" would admit nothing: what is exact has no successors
        return (term.removesuffix("+") if term.endswith("+") else normalise(term),)

    def _matches(self, term: str, arch: str, prebuilt: bool) -> bool:
        if term == "any":
            return True
        if term in self.families:
            return arch in self.families[term]
        first, dots, last = term.partition("..")
        if dots:
            return self._not_before(arch, first, prebuilt) and self._not_before(last, arch, prebuilt)
        if term.endswith("+"):
            return self._not_before(arch, term[:-1], prebuilt)
        suffixed = _SM.fullmatch(term)
        if suffixed and suffixed[2] == "f":
            base = suffixed[1]
            same_major = base[:-1] == arch[:-1]
            return same_major and self._not_before(arch, base, prebuilt)
        return normalise(term) == arch

    def _not_before(self, arch: str, base: str, prebuilt: bool) -> bool:
        line = self._line(base)
        if line is None:
            return arch == base
        if arch in line and base in line:
            return line.index(arch) >= line.index(base)
        unlisted = not (arch in self.archs and base in self.archs)
        return unlisted and not prebuilt and self._line(arch) == line and _order(arch) >= _order(base)

    def _line(self, arch: str) -> tuple[str, ...] | None:
        for line in self.lines:
            if arch in line:
                return line
        number = _number(arch)
        if number is None or arch in self.archs:
            return None
        same_scheme = [line for line in self.lines if (last := _number(line[-1])) and last[0] == number[0]]
        return max(same_scheme, key=lambda line: _shared_prefix(arch, line), default=None)


def _order(arch: str) -> tuple[int, ...]:
    number = _number(arch)
    return number[1] if number else ()


def _shared_prefix(arch: str, line: Sequence[str]) -> int:
    def shared(member: str) -> int:
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(arch, member, strict=False))
        return sum(1 for _ in pairs)

    return max(map(shared, line))
