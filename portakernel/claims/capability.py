"""What a kernel claims it can serve, and the reasons for which it cannot serve a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from portakernel.claims.request import Phase, Request
from portakernel.errors import PortakernelError
from portakernel.text.printable import brief, one_line
from portakernel.words.arch import ArchSpace, Selector
from portakernel.words.dtypes import DTYPES
from portakernel.words.symbols import known, left_to_the_run
from portakernel.words.target import Target


class ReasonCode(StrEnum):
    """Why a kernel does not serve a request; stable, documented, for programs to act on."""

    NOT_INSTALLED = "not_installed"
    IMPORT_FAILED = "import_failed"
    PROBE_FAILED = "probe_failed"
    API_VERSION = "api_version"
    DISABLED = "disabled"
    NEEDS_BUILD = "needs_build"
    DENIED_BY_POLICY = "denied_by_policy"
    NOT_ALLOWED = "not_allowed"
    NOT_IN_PLAN = "not_in_plan"
    VENDOR = "vendor"
    ARCH = "arch"
    DRIVER = "driver"
    MISSING_LIBRARY = "missing_library"
    MISSING_TOOLCHAIN = "missing_toolchain"
    DTYPE = "dtype"
    SCALE_FORMAT = "scale_format"
    LAYOUT = "layout"
    ALIGNMENT = "alignment"
    LIMIT = "limit"
    FEATURE = "feature"
    REQUIRES_GRAD = "requires_grad"
    NO_BACKWARD = "no_backward"
    BACKWARD_MISMATCH = "backward_mismatch"
    NOT_DETERMINISTIC = "not_deterministic"
    NOT_BATCH_INVARIANT = "not_batch_invariant"
    NOT_CAPTURABLE = "not_capturable"
    WORKSPACE = "workspace"
    SHARED_MEMORY = "shared_memory"
    CANNOT_RUN = "cannot_run"
    SHADOW_MISMATCH = "shadow_mismatch"
    ATTACHED_TARGET = "attached_target"
    THIRD_PARTY = "third_party"
    LOWER_PRIORITY = "lower_priority"


# Of a kernel that could serve, why another goes first.
OUTRANKED = frozenset({ReasonCode.THIRD_PARTY, ReasonCode.LOWER_PRIORITY})


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a kernel cannot serve: a stable code, a sentence, and the parameter at fault (``N``, ``x.alignment``).

    ``passing``: the host's fault at this moment; the next call asks again.
    """

    code: ReasonCode
    text: str
    parameter: str | None = None
    passing: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        # a plugin makes these too: what it says stays on its line, and its code is one of ours
        object.__setattr__(self, "code", ReasonCode(self.code))
        object.__setattr__(self, "text", one_line(self.text))
        if self.parameter is not None:
            object.__setattr__(self, "parameter", one_line(self.parameter))

    def __repr__(self) -> str:
        return brief(f"<Rejection {self.code}: {self.text}>")


class CannotRun(PortakernelError):  # noqa: N818 - an outcome that a kernel declares, not a failure
    """Raised by a kernel before it has launched anything: it cannot serve this call; the next kernel is asked.

    Any other exception counts as a bug and propagates.
    """

    def __init__(self, rejection: Rejection) -> None:
        self.rejection = rejection
        super().__init__(f"{rejection.code}: {rejection.text}")


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one dimension (``N``) or layout fact (``x.stride_last``) of a request."""

    parameter: str
    min: int | None = None
    max: int | None = None
    multiple_of: int | None = None
    one_of: tuple[int | bool, ...] | None = None
    power_of_two: bool = False

    def __repr__(self) -> str:
        return brief(f"<Limit {self}>")

    def __str__(self) -> str:
        return f"{self.parameter} {' and '.join(self._terms())}"

    def admits(self, value: int) -> bool:
        """Whether ``value`` is within the bound."""
        return (
            (self.min is None or known(value >= self.min))
            and (self.max is None or known(value <= self.max))
            and (self.multiple_of is None or known(value % self.multiple_of == 0))
            and (self.one_of is None or any(known(value == one) for one in self.one_of))
            and (not self.power_of_two or (known(value > 0) and known(value & (value - 1) == 0)))
        )

    def _terms(self) -> Iterator[str]:
        if self.min is not None:
            yield f">= {self.min}"
        if self.max is not None:
            yield f"<= {self.max}"
        if self.multiple_of is not None:
            yield f"a multiple of {self.multiple_of}"
        if self.one_of is not None:
            yield f"{'in' if len(self.one_of) > 1 else '='} {_shown(self.one_of)}"
        if self.power_of_two:
            yield "a power of two"

    def rejection(self, value: int) -> Rejection | None:
        """The reason for which ``value`` is refused."""
        if self.admits(value):
            return None
        fact = self.parameter.partition(".")[2]
        code = ReasonCode.ALIGNMENT if fact == "alignment" else ReasonCode.LAYOUT if fact else ReasonCode.LIMIT
        later = ", known only when the graph runs" if left_to_the_run(value) else ""
        return Rejection(code, f"needs {self}; this is {_shown((value,))}{later}", self.parameter)


def _shown(values: tuple[int | bool | str, ...]) -> str:
    return ", ".join(value if isinstance(value, str) else str(value).lower() for value in values)


Property = Literal["deterministic", "batch_invariant", "graph_capture", "inplace"]
_PROPERTY_REASONS: Mapping[str, tuple[ReasonCode, str]] = {
    "deterministic": (ReasonCode.NOT_DETERMINISTIC, "does not promise equal results from run to run"),
    "batch_invariant": (
        ReasonCode.NOT_BATCH_INVARIANT,
        "does not promise a row's result independent of the other rows",
    ),
    "graph_capture": (ReasonCode.NOT_CAPTURABLE, "cannot be launched while a stream is captured"),
    "inplace": (ReasonCode.LAYOUT, "cannot write its output over one of its inputs"),
}

# What forward keeps for backward: the contract's tensors, tensors of its own, nothing; or it consists of torch
# operators, whose gradient PyTorch records by itself.
Saves = Literal["contract", "own", "none", "autograd"]


@dataclass(frozen=True, slots=True)
class Capability:
    """One whole alternative of what a kernel claims; a kernel has one or several.

    ``targets`` maps a vendor to the selected archs, and ``*`` to those of every vendor not named. ``dtypes`` maps a
    tensor argument to the dtypes it may have; another argument's name stands for that one's dtype. ``values`` maps a
    keyword argument to the values it may have; an argument that is not named may have any.
    """

    targets: Mapping[str, Selector]
    dtypes: Mapping[str, tuple[str, ...]]
    formats: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    limits: tuple[Limit, ...] = ()
    features: frozenset[str] = frozenset()
    values: Mapping[str, tuple[bool | str, ...]] = field(default_factory=dict[str, tuple[bool | str, ...]])
    properties: frozenset[str] = frozenset()
    prebuilt: bool = False
    saves: Saves = "none"
    has_backward: bool = False
    forward_ad: bool = False

    def __repr__(self) -> str:
        dtypes = "; ".join(f"{name} {', '.join(accepted)}" for name, accepted in self.dtypes.items())
        return brief(f"<Capability on {', '.join(self.targets)}: {dtypes}>")

    def selector(self, vendor: str) -> Selector | None:
        """The archs of ``vendor`` that are claimed."""
        return self.targets.get(vendor, self.targets.get("*"))

    def possible_dtypes(self, name: str) -> tuple[str, ...]:
        """Every dtype that the argument ``name`` may have in some call."""
        found: list[str] = []
        for entry in self.dtypes.get(name, ()):
            found += [entry] if entry in DTYPES else self.possible_dtypes(entry)
        return tuple(dict.fromkeys(found))

    def serving_target(self, request: Request, spaces: Mapping[str, ArchSpace]) -> Target | None:
        """The request's own target or the first attached one that this claim covers."""
        for target in (request.target, *(device.target for device in request.attached)):
            if self._covers(target, spaces):
                return target
        return None

    def supports(self, request: Request, spaces: Mapping[str, ArchSpace]) -> bool:
        """Whether nothing speaks against serving ``request``."""
        return not self.rejections(request, spaces)

    def rejections(self, request: Request, spaces: Mapping[str, ArchSpace]) -> tuple[Rejection, ...]:
        """Every reason for which this claim does not cover ``request``; empty when it does.

        What a request leaves open (a dimension that was not given) rejects nothing; ``assumptions`` lists it.
        """
        found: list[Rejection] = []
        if self.serving_target(request, spaces) is None:
            found.append(self._target_rejection(request.target, spaces))
        found += self._dtype_rejections(request)
        found += self._format_rejections(request)
        for limit in self.limits:
            value = request.value(limit.parameter)
            if value is not None and (rejection := limit.rejection(value)):
                found.append(rejection)
        for name, asked in request.features.items():
            if name not in self.features:
                found.append(Rejection(ReasonCode.FEATURE, f"does not serve {name}={asked!r}", name))
        found += self._value_rejections(request)
        for name in sorted(request.requires - self.properties):
            code, text = _PROPERTY_REASONS[name]
            found.append(Rejection(code, text, name))
        found += self._phase_rejections(request)
        return tuple(found)

    def assumptions(
        self, request: Request, spaces: Mapping[str, ArchSpace], possible: Mapping[str, Sequence[str]]
    ) -> tuple[str, ...]:
        """What was taken for granted because the request leaves it open, and notes on an unlisted arch.

        ``possible`` are the dtypes that the op lets each argument have in calls with the request's values. Where the
        kernel takes all of them, nothing is assumed.
        """
        open_limits = [limit for limit in self.limits if request.value(limit.parameter) is None]
        notes = [str(limit) for limit in open_limits if limit.parameter.partition(".")[0] not in request.absent]
        notes += [f"{name} in {_shown(taken)}" for name, taken in self.values.items() if name not in request.values]
        for name in self.dtypes:
            taken = [dtype for dtype in possible.get(name, ()) if dtype in self.possible_dtypes(name)]
            if name not in request.dtypes and name not in request.absent and len(taken) < len(possible.get(name, ())):
                notes.append(f"{name} in {', '.join(taken)}")
        target = self.serving_target(request, spaces)
        if target is not None and target.vendor in spaces and (selector := self.selector(target.vendor)) is not None:
            note = spaces[target.vendor].membership(selector, target.arch, prebuilt=self.prebuilt).note
            notes += [note] if note else []
        return tuple(notes)

    def _covers(self, target: Target, spaces: Mapping[str, ArchSpace]) -> bool:
        selector, space = self.selector(target.vendor), spaces.get(target.vendor)
        if selector is None or not selector.include:
            return False
        if space is None:
            return selector.include == ("any",)
        return space.membership(selector, target.arch, prebuilt=self.prebuilt).inside

    def _target_rejection(self, target: Target, spaces: Mapping[str, ArchSpace]) -> Rejection:
        """Why ``target`` is not covered."""
        selector, space = self.selector(target.vendor), spaces.get(target.vendor)
        if selector is None or not selector.include:
            served = [vendor for vendor, archs in self.targets.items() if archs.include]
            vendors = ", ".join("torch devices" if vendor == "*" else vendor for vendor in served) or "nothing"
            return Rejection(ReasonCode.VENDOR, f"serves {vendors}, not {target.vendor}", "target")
        if space is None:
            return Rejection(ReasonCode.VENDOR, f"no backend for vendor {target.vendor} is installed", "target")
        note = space.membership(selector, target.arch, prebuilt=self.prebuilt).note
        return Rejection(ReasonCode.ARCH, note or f"needs {selector}; this is {target.arch}", "target")

    def _dtype_rejections(self, request: Request) -> Iterator[Rejection]:
        for name, accepted in self.dtypes.items():
            found = request.dtypes.get(name)
            open_references = [entry for entry in accepted if entry not in DTYPES and entry not in request.dtypes]
            if found is None or open_references:
                continue
            names = [request.dtypes.get(entry, entry) for entry in accepted]
            if found not in names:
                shown = ", ".join(f"{entry}'s dtype" if entry in request.dtypes else entry for entry in accepted)
                yield Rejection(ReasonCode.DTYPE, f"{name} needs {shown}; this is {found}", name)

    def _format_rejections(self, request: Request) -> Iterator[Rejection]:
        for name, found in request.formats.items():
            accepted = self.formats.get(name, ())
            if found not in accepted:
                shown = ", ".join(accepted) or "no scale format"
                yield Rejection(ReasonCode.SCALE_FORMAT, f"{name} takes {shown}; this is {found}", name)

    def _value_rejections(self, request: Request) -> Iterator[Rejection]:
        for name, accepted in self.values.items():
            if name in request.values and (found := request.values[name]) not in accepted:
                shown = str(found).lower() if isinstance(found, bool) else repr(found)
                text = f"{name} takes {_shown(accepted)}; this is {shown}"
                yield Rejection(ReasonCode.FEATURE, text, name)

    def _phase_rejections(self, request: Request) -> Iterator[Rejection]:
        match request.phase:
            case Phase.INFERENCE:
                return
            case Phase.TRAINING:
                if request.saved and self.saves == "none":
                    tensors = ", ".join(request.saved)
                    yield Rejection(ReasonCode.REQUIRES_GRAD, f"does not save {tensors} for backward", "requires_grad")
                if request.below_autograd and self.saves == "autograd":
                    text = "PyTorch records its gradient, which comes too late: the gradient is portakernel's"
                    yield Rejection(ReasonCode.REQUIRES_GRAD, text, "requires_grad")
                if request.unpaired and self.saves == "own":
                    text = (
                        "saves what only its own backward reads, and a graph that follows policy blocks chooses apart"
                    )
                    yield Rejection(ReasonCode.BACKWARD_MISMATCH, text, "requires_grad")
            case Phase.BACKWARD:
                if not self.has_backward:
                    yield Rejection(ReasonCode.NO_BACKWARD, "has no backward kernel", "requires_grad")
            case Phase.FORWARD_AD:
                if not self.forward_ad:
                    yield Rejection(ReasonCode.REQUIRES_GRAD, "has no forward-mode derivative", "requires_grad")
