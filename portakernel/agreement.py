"""Ranks that agree on one set of decisions: three collectives, whatever happens, and none afterwards.

Ranks whose stores differ would choose different kernels, whose numbers differ, and whose collectives would not meet.
Nothing is measured here, and no time is compared: what the first rank has decided is what all follow, if their kernels
are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from portakernel.errors import ArgumentTypeError, PortakernelError, RankDisagreement, RankLostError
from portakernel.text.printable import exception_text
from portakernel.tuning.key import canonical

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

MOST_BYTES = 1 << 20
# Of a rank's digest: decisions for its target, sources, target, and how long the decisions are as JSON.
_PARTS = (24, 24, 12, 4)
_DIGEST_BYTES = sum(_PARTS)
_VERDICT_BYTES = 1024
_LONGEST_NAME, _LONGEST_TEXT = 200, 300
_MOST_NAMED = 8
_STEPS = ("the digests", "the decisions of the first rank", "the verdicts")

# By target, by op: entries as a plan has them, or whatever else JSON can hold.
Decisions = Mapping[str, Mapping[str, Sequence[Any]]]


class Followed(Protocol):
    """What a process follows where no policy names a kernel."""

    @property
    def target(self) -> str:
        """The kind of device that this rank computes on, such as ``nvidia:sm_90/132``."""
        ...

    def decisions(self) -> Decisions:
        """What is decided, for each target that something is known of, as JSON-ready data."""
        ...

    def sources(self) -> Mapping[str, str]:
        """The digest of each kernel that may be chosen."""
        ...

    def adopt(self, decisions: Decisions) -> None:
        """Follows these, and nothing else, for as long as the process lives."""
        ...


def agree(followed: Followed, group: ProcessGroup | None = None) -> str:
    """Has all ranks of ``group`` follow what the first one does; each of them calls it, once.

    What it returns is to be warned of: that ranks differ by their devices' units, for which other things are decided;
    empty where there is nothing.

    Raises:
        RankDisagreement: kernels' sources differ; on every rank, whichever it is.
        RankLostError: a rank did not come before the group's timeout.
        ArgumentTypeError: ``group`` is no group, or none that this rank is in.
        PortakernelError: torch.distributed is not initialised.
    """
    ranks = _Ranks.of(group)
    mine = _Standing.of(followed)
    heads = [_Head.parse(content) for content in ranks.gather(mine.head(), _STEPS[0])]
    first, agreed = heads[0], all(head == heads[0] for head in heads)
    # one byte, where nothing needs to be said: as many collectives, everywhere
    size = 1 if agreed or first.size == 0 else first.size
    payload = ranks.broadcast(mine.payload if size > 1 else b"", size, _STEPS[1])
    found, verdict = mine.decisions, mine.problem
    if size > 1 and not verdict:
        found, verdict = _held_against(payload, mine)
    said = {"target": mine.target} | dict(verdict or {})
    verdicts = [_decoded(content) for content in ranks.gather(_encoded(said), _STEPS[2])]
    if any(verdict.keys() & {"kernel", "error"} for verdict in verdicts):
        raise _disagreement(verdicts) from mine.error
    followed.adopt(found)
    return _unlike(found, [verdict["target"] for verdict in verdicts])


def _unlike(decisions: Decisions, targets: Sequence[str]) -> str:
    """That devices of one architecture have other units, and other decisions therefore; empty where none have.

    ``targets`` are those of the ranks.
    """
    ranks, of_arch = dict[str, list[int]](), dict[str, list[str]]()
    for rank, target in enumerate(targets):
        ranks.setdefault(target, []).append(rank)
    for target in ranks:
        of_arch.setdefault(target.rpartition("/")[0], []).append(target)
    for arch, several in of_arch.items():
        if all(_chosen(decisions, target) == _chosen(decisions, several[0]) for target in several):
            continue
        told = "; ".join(f"{target} on rank{'s' * (len(at := ranks[target]) > 1)} {_listed(at)}" for target in several)
        remedy = "; give all as many threads (OMP_NUM_THREADS)" if arch.startswith("cpu:") else ""
        text = "what is followed on one is not followed on the other, and they may run different kernels"
        return f"agree: the ranks' devices differ by their units: {told}: {text}{remedy}"
    return ""


def _chosen(decisions: Decisions, target: str) -> Mapping[str, Sequence[Any]]:
    """What is decided for a target, without what stands beside an entry: where it is from, and why."""
    ops = decisions.get(target, {})
    return {op: [one.get("entry", one) for one in entries] for op, entries in ops.items()}


def _listed(ranks: Sequence[int]) -> str:
    more = len(ranks) - _MOST_NAMED
    return ", ".join(map(str, ranks[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


def _disagreement(verdicts: Sequence[Mapping[str, str]]) -> RankDisagreement:
    differences = [
        (rank, verdict["kernel"], verdict["there"], verdict["first"])
        for rank, verdict in enumerate(verdicts)
        if "kernel" in verdict
    ]
    others = [(rank, verdict["error"]) for rank, verdict in enumerate(verdicts) if "error" in verdict]
    return RankDisagreement(differences, others)


@dataclass(frozen=True, slots=True)
class _Head:
    """What the first collective says of a rank; ``size`` is that of what it would send, 0 where it has nothing."""

    decisions: bytes
    sources: bytes
    target: bytes
    size: int

    @classmethod
    def parse(cls, content: bytes) -> _Head:
        decisions, sources, target, _ = _PARTS
        ends = decisions, decisions + sources, decisions + sources + target
        return cls(
            content[: ends[0]], content[ends[0] : ends[1]], content[ends[1] : ends[2]], _number(content[ends[2] :])
        )


def _number(content: bytes) -> int:
    return int.from_bytes(content, "big")


@dataclass(frozen=True, slots=True)
class _Standing:
    """What this rank would follow, and, where it cannot say, why: the others are told, and nobody waits."""

    decisions: Decisions
    sources: Mapping[str, str]
    target: str
    payload: bytes = b""
    problem: Mapping[str, str] | None = None
    error: Exception | None = None

    @classmethod
    def of(cls, followed: Followed) -> _Standing:
        try:
            decisions, sources, target = followed.decisions(), dict(followed.sources()), followed.target
            payload = canonical({"decisions": decisions, "sources": sources}).encode()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for three collectives
            return cls({}, {}, "", problem={"error": exception_text(error)}, error=error)
        if len(payload) > MOST_BYTES:
            text = f"its decisions have {len(payload)} bytes; at most {MOST_BYTES} are sent"
            return cls(decisions, sources, target, problem={"error": text})
        return cls(json.loads(payload)["decisions"], sources, target, payload)

    def head(self) -> bytes:
        """The digest of 64 bytes."""
        parts = self.decisions.get(self.target, {}), self.sources, self.target
        digests = [
            hashlib.sha256(canonical(part).encode()).digest()[:size] for part, size in zip(parts, _PARTS, strict=False)
        ]
        return b"".join([*digests, len(self.payload).to_bytes(_PARTS[-1], "big")])


def _held_against(payload: bytes, mine: _Standing) -> tuple[Decisions, Mapping[str, str] | None]:
    """The first rank's decisions, and in what this rank's kernels differ from its."""
    sent = json.loads(payload)
    sources: Mapping[str, str] = sent["sources"]
    for name in sorted({*sources, *mine.sources}):
        there, first = mine.sources.get(name, ""), sources.get(name, "")
        if there != first:
            return mine.decisions, {"kernel": name, "there": there, "first": first}
    return sent["decisions"], None


def _encoded(verdict: Mapping[str, str]) -> bytes:
    short = {name: value[: _LONGEST_TEXT if name == "error" else _LONGEST_NAME] for name, value in verdict.items()}
    while len(content := json.dumps(short, ensure_ascii=False).encode()) > _VERDICT_BYTES:
        longest = max(short, key=lambda name: len(short[name].encode()))
        short[longest] = short[longest][: len(short[longest]) // 2]
    return content


def _decoded(content: bytes) -> Mapping[str, str]:
    text = content.rstrip(b"\0")
    return json.loads(text) if text else {}


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The ranks of a group, and the memory that its collectives take."""

    group: ProcessGroup | None
    count: int
    device: torch.device

    @classmethod
    def of(cls, group: ProcessGroup | None) -> _Ranks:
        import torch
        from torch import distributed

        if not distributed.is_available() or not distributed.is_initialized():
            raise PortakernelError(
                "agree: torch.distributed is not initialised; call torch.distributed.init_process_group first, or"
                " leave agree out where one process computes"
            )
        if group is not None and not isinstance(group, distributed.ProcessGroup):
            raise ArgumentTypeError(
                f"agree: group is {group!r}, not a ProcessGroup; give what torch.distributed.new_group returned, on its"
                " ranks alone, or None for all ranks"
            )
        kinds = [part.partition(":")[0] for part in distributed.get_backend_config(group).split(",")]
        accelerator = torch.accelerator.current_accelerator()
        device = torch.device("cpu")
        if "cpu" not in kinds and accelerator is not None:
            device = torch.device(accelerator.type, torch.accelerator.current_device_index())
        return cls(group, distributed.get_world_size(group), device)

    def gather(self, content: bytes, what: str) -> list[bytes]:
        """What each rank gives, of one size, filled up with zeros."""
        import torch
        from torch import distributed

        size = _DIGEST_BYTES if what == _STEPS[0] else _VERDICT_BYTES
        mine = self._tensor(content, size)
        found = [torch.empty_like(mine) for _ in range(self.count)]
        self._wait(lambda: distributed.all_gather(found, mine, group=self.group), what)
        return [bytes(each.cpu().tolist()) for each in found]

    def broadcast(self, content: bytes, size: int, what: str) -> bytes:
        """What the first rank gives."""
        from torch import distributed

        sent = self._tensor(content, size)
        self._wait(lambda: distributed.broadcast(sent, group=self.group, group_src=0), what)
        return bytes(sent.cpu().tolist())

    def _tensor(self, content: bytes, size: int) -> torch.Tensor:
        import torch

        filled = bytearray(content[:size].ljust(size, b"\0"))
        return torch.frombuffer(filled, dtype=torch.uint8).to(self.device)

    def _wait(self, collective: Callable[[], object], what: str) -> None:
        try:
            collective()
            if self.device.type != "cpu":
                import torch

                torch.accelerator.synchronize(self.device)
        except RuntimeError as error:  # what each backend raises when a rank is gone, or its time is up
            raise RankLostError(what, self.count, exception_text(error)) from error
