"""Claims that no call can match, and claims that stand in each other's way, told from manifests alone.

What is certain is told, and nothing else: a kernel with a ``check`` of its own may refuse more than its manifest says,
so that it is taken to overlap with nobody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from portakernel.claims.capability import Capability, Limit
from portakernel.contract import Contract
from portakernel.contracts import contract
from portakernel.errors import ArgumentTypeError
from portakernel.manifest.models import Claim
from portakernel.manifest.yaml_file import KeyPath
from portakernel.registry.kernel import Kernel, PriorityRule
from portakernel.registry.manifest_kernels import Judged
from portakernel.words.arch import ArchSpace, Selector
from portakernel.words.target import Target

Found = Iterator[tuple[KeyPath, str]]
Spaces = Mapping[str, ArchSpace]
_LARGEST = 1 << 62
# The keys that say which calls a kernel serves.
_CLAIMED = frozenset(Claim.model_fields)
# What a layout fact can be at all; a stride is any number.
_FACTS: Mapping[str, tuple[int, ...]] = {"contiguous": (0, 1), "flat_rows": (0, 1), "alignment": (1, 2, 4, 8, 16)}


def claim_problems(judged: Sequence[Judged | None], spaces: Spaces) -> Found:
    """The place and text of everything about the claims of a manifest's kernels that makes no sense.

    Of keys that are at fault besides nothing follows; a kernel is None where nothing at all is known of its claims.
    """
    sound = list[tuple[int, Kernel]]()
    for i, one in enumerate(judged):
        if one is None:
            continue
        kernel, faulty = one.kernel, one.faulty
        here: KeyPath = ("kernels", i)
        for j, (_, claim) in enumerate(kernel.variants):
            place = (*here, "variants", j) if kernel.variants[0][0] else here
            yield from _impossible(kernel, claim, spaces, place)
            if "dtypes" not in faulty:
                yield from _unmatched_dtypes(kernel, claim, place)
            for earlier, (name, other) in enumerate(kernel.variants[:j] if not faulty & _CLAIMED else ()):
                if covers(other, claim, spaces):
                    text = f"can never match: {name} (variants[{earlier}]) comes first and takes all that this one does"
                    yield place, f"{text}; remove it, put it first, or narrow {name}"
                    break
        if not faulty & {"priority", "limits"}:
            yield from _idle_priorities(kernel, spaces, here)
        if not faulty & {*_CLAIMED, "priority", "check", "disabled"}:
            yield from _ties(kernel, sound, spaces, here)
            sound.append((i, kernel))


def _impossible(kernel: Kernel, claim: Capability, spaces: Spaces, place: KeyPath) -> Found:
    """Why no call whatever can match the claim."""
    for vendor, selector in claim.targets.items():
        space = spaces.get(vendor)
        if space is not None and not _members(selector, space) and not _is_later(selector, space):
            text = f"can never match: {selector} is no architecture of {vendor}"
            mend = "take some out of `not`" if selector.exclude else "name one that is"
            yield (*place, "targets", vendor), f"{text}; {mend}, or leave the vendor out"
    for limit in claim.limits:
        if not satisfiable([limit]):
            text = f"can never match: nothing is {str(limit).removeprefix(limit.parameter).strip()}"
            yield (*place, "limits", limit.parameter), f"{text}{_possible(limit.parameter)}; widen or remove the limit"


def _unmatched_dtypes(kernel: Kernel, claim: Capability, place: KeyPath) -> Found:
    """Dtypes of arguments that no call has beside those claimed of the others."""
    op = contract(kernel.op)
    for name, dtype in _unaccepted(op, claim):
        text = f"can never match: {kernel.op} takes {name} in {dtype} with none of the other arguments' dtypes here"
        yield (*place, "dtypes", name), f"{text}; claim those that go with it, or leave {dtype} out"


def _idle_priorities(kernel: Kernel, spaces: Spaces, place: KeyPath) -> Found:
    """Rules of a priority that never apply, because the claims or an earlier rule leave them nothing."""
    for n, rule in enumerate(kernel.priority.rules):
        where, shown = (*place, "priority", n), " and ".join(rule.conditions())
        if shown and not any(_meets(rule, claim) for _, claim in kernel.variants):
            yield where, f"can never match: {shown} lies outside the kernel's own claims; remove the rule"
        if rule.targets is not None and not any(_serves(kernel, target, spaces) for target in rule.targets):
            text = "can never match: none of its targets is one that the kernel serves"
            yield (*where, "targets"), f"{text}; name some of its own, or remove the rule"
        earlier = next((m for m, other in enumerate(kernel.priority.rules[:n]) if _covers(other, rule)), None)
        if earlier is not None:
            yield where, f"can never match: priority[{earlier}] comes first and holds whenever this does; put it first"


def _meets(rule: PriorityRule, claim: Capability) -> bool:
    """Whether a call that the claim serves may have the sizes, values and features that the rule says."""
    alike = all(set(accepted) & set(claim.values.get(name, accepted)) for name, accepted in rule.values)
    able = set(rule.features) <= set(claim.features)
    return alike and able and satisfiable([*rule.limits, *claim.limits])


def _serves(kernel: Kernel, target: Target, spaces: Spaces) -> bool:
    """Whether the targets of one of the kernel's claims have ``target`` among them."""
    space = spaces.get(target.vendor)
    selectors = [claim.targets[target.vendor] for _, claim in kernel.variants if target.vendor in claim.targets]
    return space is not None and any(space.membership(selector, target.arch).inside for selector in selectors)


def _covers(earlier: PriorityRule, later: PriorityRule) -> bool:
    """Whether ``earlier`` holds wherever ``later`` does."""
    everywhere = earlier.targets is None or (later.targets is not None and later.targets <= earlier.targets)
    conditional = earlier.conditions() or earlier.targets is not None
    wanted = dict(later.values)
    within = not earlier.phases or (later.phases != () and set(later.phases) <= set(earlier.phases))
    within &= set(earlier.features) <= set(later.features) and set(earlier.without) <= set(later.without)
    within &= all(name in wanted and set(wanted[name]) <= set(accepted) for name, accepted in earlier.values)
    return bool(conditional) and everywhere and within and implies(later.limits, earlier.limits)


def _ties(kernel: Kernel, earlier: Sequence[tuple[int, Kernel]], spaces: Spaces, place: KeyPath) -> Found:
    """Kernels of one op between which nothing but their names decides."""
    for n, other in earlier:
        if other.op != kernel.op or other.priority != kernel.priority or other.check or kernel.check:
            continue
        if kernel.disabled or other.disabled:
            continue
        pairs = itertools.product(kernel.variants, other.variants)
        if any(overlap(a, b, contract(kernel.op), spaces) for (_, a), (_, b) in pairs):
            text = f"overlaps with kernels[{n}], {other.name}: both take some calls of {kernel.op} with equal priority"
            yield place, f"{text}, so that their names decide; give them different ones, or narrow one's claims"


def covers(wide: Capability, narrow: Capability, spaces: Spaces) -> bool:
    """Whether every request that ``narrow`` serves is certainly served by ``wide``."""
    return (
        all(_contains(wide.targets.get(v), s, spaces.get(v)) for v, s in narrow.targets.items())
        and (narrow.prebuilt or not wide.prebuilt)
        and all(set(dtypes) <= set(wide.dtypes.get(name, ())) for name, dtypes in narrow.dtypes.items())
        and all(set(formats) <= set(wide.formats.get(name, ())) for name, formats in narrow.formats.items())
        and implies(narrow.limits, wide.limits)
        and narrow.features <= wide.features
        and all(set(narrow.values.get(name, (None,))) <= set(taken) for name, taken in wide.values.items())
        and narrow.properties <= wide.properties
    )


def overlap(a: Capability, b: Capability, op: Contract, spaces: Spaces) -> bool:
    """Whether some request is certainly served by both."""
    return (
        any(_shared(s, b.targets[v], spaces.get(v)) for v, s in a.targets.items() if v in b.targets)
        and bool(_combinations(op, a) & _combinations(op, b))
        and all(set(a.formats[name]) & set(b.formats.get(name, ())) for name in a.formats)
        and satisfiable([*a.limits, *b.limits])
        and all(set(taken) & set(b.values.get(name, taken)) for name, taken in a.values.items())
    )


def implies(strong: Sequence[Limit], weak: Sequence[Limit]) -> bool:
    """Whether every value that ``strong`` admits is certainly admitted by ``weak``."""
    by_name = {limit.parameter: limit for limit in strong}
    return all(limit.parameter in by_name and _implied(by_name[limit.parameter], limit) for limit in weak)


def _implied(strong: Limit, weak: Limit) -> bool:
    if strong == weak:
        return True
    if strong.one_of is not None:
        return all(weak.admits(value) for value in strong.one_of if strong.admits(value))
    if weak.one_of is not None or (weak.power_of_two and not strong.power_of_two):
        return False
    least = weak.min is None or (strong.min is not None and strong.min >= weak.min)
    most = weak.max is None or (strong.max is not None and strong.max <= weak.max)
    step = weak.multiple_of is None or (strong.multiple_of or 0) % weak.multiple_of == 0 < (strong.multiple_of or 0)
    return least and most and step


def satisfiable(limits: Sequence[Limit]) -> bool:
    """Whether each parameter can have a value that all its limits admit."""
    by_name: dict[str, list[Limit]] = {}
    for limit in limits:
        by_name.setdefault(limit.parameter, []).append(limit)
    return all(
        any(all(limit.admits(value) for limit in several) for value in _candidates(parameter, several))
        for parameter, several in by_name.items()
    )


def _candidates(parameter: str, limits: Sequence[Limit]) -> Iterator[int]:
    """Values among which there is one that the limits admit, if there is any."""
    fact = parameter.partition(".")[2]
    if fact in _FACTS:
        yield from _FACTS[fact]
        return
    listed = next((limit.one_of for limit in limits if limit.one_of is not None), None)
    if listed is not None:
        yield from (value for value in listed if fact or value >= 0)
    elif any(limit.power_of_two for limit in limits):
        yield from (1 << bit for bit in range(63))
    else:
        step, least = 1, max([0, *(limit.min for limit in limits if limit.min is not None)])
        for limit in limits:
            step = math.lcm(step, limit.multiple_of or 1)
        if (first := -(-least // step) * step) <= _LARGEST:
            yield first


def _possible(parameter: str) -> str:
    fact = parameter.partition(".")[2]
    if fact in ("contiguous", "flat_rows"):
        return f" ({fact} is true or false)"
    return f" ({fact} is {', '.join(map(str, _FACTS[fact]))})" if fact in _FACTS else ""


def _combinations(op: Contract, claim: Capability) -> set[tuple[str, ...]]:
    """The dtypes of the arguments that every call has, in which the op accepts them and the claim takes them."""
    names = [tensor.name for tensor in op.tensors if not tensor.optional and tensor.name in claim.dtypes]
    found = set[tuple[str, ...]]()
    for picked in itertools.product(*(claim.dtypes[name] for name in names)):
        named = dict(zip(names, picked, strict=True))
        for _ in names:  # a name stands for that argument's dtype, which may be a name again
            named = {name: named.get(dtype, dtype) for name, dtype in named.items()}
        if _accepted(op, named):
            found.add(tuple(named.values()))
    return found


def _unaccepted(op: Contract, claim: Capability) -> Iterator[tuple[str, str]]:
    """The dtypes that the claim gives to arguments, and with which the op accepts none of its combinations."""
    if op.choosers:  # what it accepts depends on values, which this does not go through
        return
    names = [tensor.name for tensor in op.tensors if not tensor.optional and tensor.name in claim.dtypes]
    combinations = _combinations(op, claim)
    for n, name in enumerate(names):
        served = {dtypes[n] for dtypes in combinations}
        named = (d for d in claim.dtypes[name] if d not in claim.dtypes and d in op.possible_dtypes(name))
        yield from ((name, dtype) for dtype in named if dtype not in served)


def _accepted(op: Contract, dtypes: Mapping[str, str]) -> bool:
    if op.choosers:
        return True
    try:
        op.check_dtypes(dtypes)
    except ArgumentTypeError:
        return False
    return True


def _is_later(selector: Selector, space: ArchSpace) -> bool:
    """Whether what is selected may come to be listed; that it is not yet is told by itself."""
    return any(True for term in selector.include for _ in space.later_than_listed(term))


def _members(selector: Selector, space: ArchSpace) -> set[str]:
    """The listed archs that are selected; where any may exist, a stand-in for those that are not listed."""
    found = {arch for arch in space.archs if space.membership(selector, arch).inside}
    open_ended = space.open_ended and "any" in selector.include and "any" not in selector.exclude
    named = {term for term in selector.include if space.open_ended and term != "any"} - set(selector.exclude)
    return found | named | ({"any"} if open_ended else set())


def _contains(wide: Selector | None, narrow: Selector, space: ArchSpace | None) -> bool:
    if wide is None:
        return False
    if wide == narrow or (wide.include == ("any",) and not wide.exclude):
        return True
    return space is not None and not space.open_ended and _members(narrow, space) <= _members(wide, space)


def _shared(a: Selector, b: Selector, space: ArchSpace | None) -> bool:
    return a == b if space is None else bool(_members(a, space) & _members(b, space))
