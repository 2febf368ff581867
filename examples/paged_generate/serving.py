"""Continuous batching: in every step each running request computes what it lacks, and the next token of all follows.

A step is one call of the model, for the tokens of all requests one after the other: prompts of those that have just
joined beside one token each of the others. Attention is ``write_kv_cache`` and ``paged_attention``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

import torch
from pages import Pool
from torch import Tensor
from transformers import AttentionInterface

import portakernel
from portakernel import ops

NAME = "paged_generate"
NOWHERE = -1  # a slot that is not written, a page of the table that is not read


@dataclass(frozen=True, slots=True)
class Request:
    """``wanted`` tokens shall follow the prompt; the request comes when so many steps have been made."""

    prompt: tuple[int, ...]
    wanted: int
    comes: int


@dataclass(eq=False, slots=True)
class Running:
    """A request that has joined: its tokens so far, the pages that it holds, and how many tokens' keys are in them."""

    request: Request
    tokens: list[int]
    pages: list[int]
    computed: int
    logits: list[Tensor] = field(default_factory=list)

    @property
    def written(self) -> list[int]:
        """The tokens that have followed the prompt."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def slots_in_all(self) -> int:
        """How many tokens' keys it will have at its end; those of the last one nobody needs."""
        return len(self.request.prompt) + self.request.wanted - 1


@dataclass(frozen=True, slots=True)
class Step:
    """What one call of the model is told of S tokens of B sequences; W pages of each may be named."""

    ids: Tensor  # (S,)
    positions: Tensor  # (S,), in the token's own sequence
    slots: Tensor  # (S,), where keys and values go: page * P + row
    table: Tensor  # (B, W) int32
    lengths: Tensor  # (B,) int32, the step's own tokens included
    starts: Tensor  # (B + 1,) int32
    last: Tensor  # (B,), the row of each sequence's last token
    longest: int  # no sequence has more tokens in this step

    def to(self, device: torch.device) -> Step:
        """The same on a device."""
        return Step(*(getattr(self, one.name).to(device) for one in fields(self)[:-1]), longest=self.longest)

    def copy_(self, other: Step) -> None:
        """Puts another step of the same sizes here, where a captured graph reads."""
        for one in fields(self)[:-1]:
            getattr(self, one.name).copy_(getattr(other, one.name))


@dataclass(frozen=True, slots=True)
class Paged:
    """A step, the cache that it reads and writes, and who was chosen to serve each op in decoding and in prefill."""

    cache: Tensor  # (layers, 2, NP, P, G, D)
    step: Step
    decisions: dict[tuple[str, str], Any]

    def note(self, op: str, *tensors: Tensor, **values: Any) -> None:
        """Asks the dispatcher once for each kind of step; nothing runs."""
        kind = "decoding" if self.step.longest == 1 else "prefill"
        if (op, kind) not in self.decisions:
            self.decisions[op, kind] = portakernel.explain(op, *tensors, **values)


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    paged: Paged,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of ``(1, H, S, D)`` heads as ``(1, S, H, D)``, as transformers' layers call it by ``NAME``."""
    assert attention_mask is None  # transformers makes none for attention whose masks it does not know
    q, k, v = (heads[0].transpose(0, 1) for heads in (query, key, value))
    keys, values = paged.cache[module.layer_idx]
    step = paged.step
    new = (k, v, keys, values, step.slots)
    paged.note("write_kv_cache", *new)
    ops.write_kv_cache(*new)
    asked = (q, keys, values, step.table, step.lengths, step.starts)
    how = {"scale": scaling, "max_seqlen_q": step.longest}
    paged.note("paged_attention", *asked, **how)
    out = ops.paged_attention(*asked, **how)
    assert isinstance(out, Tensor)  # no log-sum-exp was asked for
    return out.unsqueeze(0), None


AttentionInterface.register(NAME, paged_attention)


@dataclass(slots=True)
class Work:
    """What a run took."""

    steps: int = 0
    replayed: int = 0
    shared: int = 0  # pages that a request found filled
    most_running: int = 0


class Server:
    """A model, the pages of its cache, and the requests that run.

    ``batch``: so many run at once; ``width``: no request needs more pages; ``graph``: a step in which each request
    computes one token is captured once, for ``batch`` of them, and replayed.
    """

    def __init__(self, model: Any, *, pages: int, page: int, batch: int, width: int, graph: bool) -> None:
        config, weight = model.config, model.get_input_embeddings().weight
        self.model = model
        self.pool = Pool(pages, page)
        self.batch = batch
        self.width = width
        self.decisions: dict[tuple[str, str], Any] = {}
        self.work = Work()
        self._device = weight.device
        shape = (config.num_hidden_layers, 2, pages, page, config.num_key_value_heads, config.head_dim)
        # What nobody has written is NaN: whoever reads it shows.
        self._cache = torch.full(shape, torch.nan, dtype=weight.dtype, device=weight.device)
        model.set_attn_implementation(NAME)
        self._captured = self._capture() if graph else None

    @torch.inference_mode()
    def run(self, requests: list[Request], keep_logits: bool = False) -> list[Running]:
        """Serves all requests; what became of each, in their order.

        Raises:
            ValueError: a request needs more pages than there are, or than a row of the table names.
            RuntimeError: pages that nobody uses are held, and a request waits for them.
        """
        for at, request in enumerate(requests):
            needed = self.pool.needed(len(request.prompt) + request.wanted - 1)
            if needed > min(self.width, self.pool.pages):
                room = f"there are {self.pool.pages}, and a row of the table names {self.width}"
                raise ValueError(f"request {at} needs {needed} pages of {self.pool.size} tokens; {room}")
        waiting, running, ended = sorted(requests, key=lambda one: one.comes), list[Running](), list[Running]()
        self.work = work = Work()
        while waiting or running:
            while waiting and waiting[0].comes <= work.steps and (one := self._joined(waiting[0], running)):
                running.append(one)
                del waiting[0]
            work.steps += 1
            work.most_running = max(work.most_running, len(running))
            if not running:
                if waiting[0].comes < work.steps:
                    found = f"only {self.pool.free} of {self.pool.pages} pages are free, though no request runs"
                    raise RuntimeError(f"a request waits for ever: {found}")
                continue
            logits = self._computed(running)
            following = logits.argmax(-1).tolist()
            for at, (one, token) in enumerate(zip(running, following, strict=False)):  # padding has no request
                one.computed = len(one.tokens)
                one.tokens.append(token)
                if keep_logits:
                    one.logits.append(logits[at].to("cpu", torch.float32, copy=True))
                if len(one.written) == one.request.wanted:
                    self.pool.release(one.pages)
                    ended.append(one)
            running = [one for one in running if one not in ended]
        return sorted(ended, key=lambda one: requests.index(one.request))

    def _joined(self, request: Request, running: list[Running]) -> Running | None:
        """The request among those that run; None while slots or pages lack that it may need before its end.

        Pages are taken when tokens need them, but a request joins only where all will find theirs.
        """
        shared = self.pool.filled(request.prompt)
        one = Running(request, list(request.prompt), shared, len(shared) * self.pool.size)
        lacking = sum(self.pool.needed(each.slots_in_all) - len(each.pages) for each in (*running, one))
        if len(running) == self.batch or lacking > self.pool.free:
            return None
        self.pool.share(shared)
        self.work.shared += len(shared)
        self._take_pages(one)
        return one

    def _take_pages(self, one: Running) -> None:
        """Pages for all of its tokens. Full ones can be shared from now on.

        Those that share a page in the step that fills it are right too: each layer writes all keys before it reads any.
        """
        while len(one.pages) < self.pool.needed(len(one.tokens)):
            one.pages.append(self.pool.take())
        for end in range(self.pool.size, len(one.tokens) + 1, self.pool.size):
            if end > one.computed:
                self.pool.name(one.pages[end // self.pool.size - 1], one.tokens[:end])

    def _computed(self, running: list[Running]) -> Tensor:
        """What the next tokens are chosen by: ``(B, vocabulary)``, behind those of ``running`` those of padding."""
        for one in running:
            self._take_pages(one)
        if self._captured is None or any(len(one.tokens) - one.computed > 1 for one in running):
            return self._forward(self._step(running, len(running)).to(self._device))
        held, graph, logits = self._captured
        held.copy_(self._step(running, self.batch))
        graph.replay()
        self.work.replayed += 1
        return logits

    def _step(self, running: list[Running], sequences: int) -> Step:
        """The next step, with so many sequences. Padding is one token of a sequence without keys, written nowhere."""
        padding = sequences - len(running)
        new = [range(one.computed, len(one.tokens)) for one in running]
        ids = [one.tokens[at] for one, these in zip(running, new, strict=True) for at in these]
        positions = [at for these in new for at in these]
        size = self.pool.size
        slots = [
            one.pages[at // size] * size + at % size for one, these in zip(running, new, strict=True) for at in these
        ]
        rows = [one.pages + [NOWHERE] * (self.width - len(one.pages)) for one in running]
        starts = [*accumulate((*map(len, new), *[1] * padding), initial=0)]
        return Step(
            torch.tensor(ids + [0] * padding),
            torch.tensor(positions + [0] * padding),
            torch.tensor(slots + [NOWHERE] * padding),
            torch.tensor(rows + [[NOWHERE] * self.width] * padding, dtype=torch.int32),
            torch.tensor([len(one.tokens) for one in running] + [0] * padding, dtype=torch.int32),
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor(starts[1:]) - 1,
            max((1, *map(len, new))),
        )

    def _forward(self, step: Step) -> Tensor:
        paged = Paged(self._cache, step, self.decisions)
        called = {"input_ids": step.ids.unsqueeze(0), "position_ids": step.positions.unsqueeze(0)}
        return self.model(**called, logits_to_keep=step.last, use_cache=False, paged=paged).logits[0]

    @torch.inference_mode()
    def _capture(self) -> tuple[Step, torch.cuda.CUDAGraph, Tensor]:
        """A step of padding alone, which writes nothing, computed once so that all is compiled, and captured."""
        held = self._step([], self.batch).to(self._device)
        self._forward(held)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._forward(held)
        return held, graph, logits
