"""Requests just outside each claim, which have to be refused with a reason; pure data, no kernel runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import get_args

from portakernel.claims.capability import Capability, Property, ReasonCode
from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.registry.kernel import Kernel
from portakernel.words.arch import ArchSpace
from portakernel.words.dtypes import SCALE_FORMATS
from portakernel.words.target import Target
from portakernel_kit.conformance.claims import dtype_combinations, just_inside, just_outside, unclaimed_dtypes
from portakernel_kit.conformance.outcome import Outcome, attempt
from portakernel_kit.conformance.venue import claimed_targets

_Check = Callable[[], list[str]]
_LIMIT_CODES = (ReasonCode.LIMIT, ReasonCode.LAYOUT, ReasonCode.ALIGNMENT)


def boundary_outcomes(
    contract: Contract, kernel: Kernel, spaces: Mapping[str, ArchSpace]
) -> Iterator[tuple[str, Outcome]]:
    """For each claim of each variant: its name, and whether everything just outside it is refused."""
    for claim, check in _checks(contract, kernel, spaces):
        yield claim, attempt("boundary", check)


def boundary_count(contract: Contract, kernel: Kernel, spaces: Mapping[str, ArchSpace]) -> int:
    """How many outcomes ``boundary_outcomes`` has."""
    return sum(1 for _ in _checks(contract, kernel, spaces))


def _checks(contract: Contract, kernel: Kernel, spaces: Mapping[str, ArchSpace]) -> Iterator[tuple[str, _Check]]:
    for number, (name, capability) in enumerate(kernel.variants):
        where = f"{name or f'variant {number + 1}'}: " if len(kernel.variants) > 1 else ""
        for claim, check in _Boundary(contract, capability, spaces).checks():
            yield f"{where}{claim}", check


class _Boundary:
    """One variant: a request inside it, and what lies outside, one claim at a time."""

    def __init__(self, contract: Contract, capability: Capability, spaces: Mapping[str, ArchSpace]) -> None:
        self.contract, self.capability, self.spaces = contract, capability, spaces

    def inside(self) -> Request | None:
        """A request that the claim covers, as plain as can be; None where there is none."""
        contract, capability = self.contract, self.capability
        target = next(claimed_targets(capability, self.spaces), None)
        dtypes = next(iter(dtype_combinations(contract, capability)), None)
        if target is None or dtypes is None:
            return None
        values: dict[str, int] = {}
        for name in contract.limitable():
            found = just_inside([limit for limit in capability.limits if limit.parameter == name])
            if found is not None:
                values[name] = found
        return Request(
            contract.op,
            target,
            dtypes,
            {name: value for name, value in values.items() if "." not in name},
            {name: value for name, value in values.items() if "." in name},
            formats={name: formats[0] for name, formats in capability.formats.items() if formats},
            values=contract.values({name: accepted[0] for name, accepted in capability.values.items()}),
            saved=tuple(saved.name for saved in contract.saved),
        )

    def checks(self) -> Iterator[tuple[str, _Check]]:
        """Each claim with its check."""
        base = self.inside()
        if base is None:
            vendors = ", ".join(self.capability.targets) or "no vendor"
            yield "something inside", lambda: [f"no installed backend has an arch of {vendors} that is claimed"]
            return
        capability, spaces = self.capability, self.spaces
        refused = [rejection.text for rejection in capability.rejections(base, spaces)]
        contradicted = (limit for limit in capability.limits if base.value(limit.parameter) is None)
        refused += [f"{limit} contradicts another limit" for limit in contradicted]
        yield "something inside", lambda: [f"no request is inside all claims: {text}" for text in refused]
        for limit in capability.limits:
            outside = {f"{limit.parameter} = {value}": value for value in just_outside(limit)}
            requests = {name: _moved(base, limit.parameter, value) for name, value in outside.items()}
            yield f"limit {limit}", self._refused(requests, limit.parameter, *_LIMIT_CODES)
        for argument in capability.dtypes:
            wrong = [dtypes for name, dtypes in unclaimed_dtypes(self.contract, capability) if name == argument]
            requests = {f"{argument} as {dtypes[argument]}": replace(base, dtypes=dtypes) for dtypes in wrong}
            yield f"dtypes of {argument}", self._refused(requests, None, ReasonCode.DTYPE)
        for name in self.contract.formats:
            claimed = capability.formats.get(name, ())
            strangers = [scale_format for scale_format in SCALE_FORMATS if scale_format not in claimed]
            others = {f"{name} with {f} scales": replace(base, formats={**base.formats, name: f}) for f in strangers}
            yield f"scale formats of {name}", self._refused(others, name, ReasonCode.SCALE_FORMAT)
        for feature in self.contract.features:
            if feature.name not in capability.features:
                asked = {feature.name: replace(base, features={feature.name: "asked for"})}
                yield f"without feature {feature.name}", self._refused(asked, feature.name, ReasonCode.FEATURE)
        for name, claimed_values in capability.values.items():
            strange = [value for value in self.contract.parameter(name).possible() if value not in claimed_values]
            others = {f"{name}={v!r}": replace(base, values={**base.values, name: v}) for v in strange}
            yield f"values of {name}", self._refused(others, name, ReasonCode.FEATURE)
        for name in get_args(Property):
            if name not in capability.properties:
                asked = {f"required {name}": replace(base, requires=frozenset({name}))}
                yield f"without property {name}", self._refused(asked, name)
        yield "targets", self._refused(dict(self._other_targets(base)), "target", ReasonCode.VENDOR, ReasonCode.ARCH)
        phases = {f"{phase}": replace(base, phase=phase) for phase in self._unclaimed_phases()}
        if phases:
            codes = (ReasonCode.NO_BACKWARD, ReasonCode.REQUIRES_GRAD)
            yield "phases", self._refused(phases, "requires_grad", *codes)

    def _refused(self, requests: Mapping[str, Request], parameter: str | None, *codes: ReasonCode) -> _Check:
        def check() -> list[str]:
            problems = []
            for name, request in requests.items():
                rejections = self.capability.rejections(request, self.spaces)
                fitting = [r for r in rejections if (not codes or r.code in codes) and parameter in (None, r.parameter)]
                if not rejections:
                    problems.append(f"{name} is outside what is claimed, and is not refused")
                elif not fitting:
                    given = ", ".join(f"{r.code} ({r.parameter})" for r in rejections)
                    problems.append(f"{name} is refused for {given}, not for {parameter or ' or '.join(codes)}")
            return problems

        return check

    def _other_targets(self, base: Request) -> Iterator[tuple[str, Request]]:
        for vendor, space in self.spaces.items():
            selector = self.capability.selector(vendor)
            for arch in space.archs:
                prebuilt = self.capability.prebuilt
                if selector is None or not space.membership(selector, arch, prebuilt=prebuilt).inside:
                    target = Target(vendor, arch)
                    yield str(target), replace(base, target=target)

    def _unclaimed_phases(self) -> Iterator[Phase]:
        capability, contract = self.capability, self.contract
        if contract.saved and capability.saves == "none":
            yield Phase.TRAINING
        if not capability.has_backward and contract.gradient == "kernel":
            yield Phase.BACKWARD
        if not capability.forward_ad:
            yield Phase.FORWARD_AD


def _moved(request: Request, parameter: str, value: int) -> Request:
    """``request`` with one dimension or layout fact changed."""
    if "." in parameter:
        return replace(request, facts={**request.facts, parameter: value})
    return replace(request, dims={**request.dims, parameter: value})
