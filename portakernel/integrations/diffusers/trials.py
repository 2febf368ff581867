"""The first call of each kind is computed twice: by the op and by diffusers, both held against the formula in float64.

A kind is what the layout, the masks and the op's features depend on: dtype, device, heads and their sizes, the mask's
form. Lengths are not part of it: sequences are cut for a trial, so that the largest image costs what the smallest does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel.errors import PortakernelError
from portakernel.integrations.call_kinds import holds_numbers
from portakernel.integrations.client import client
from portakernel.integrations.diffusers.calls import LAYER, NAME, OP, Call, exact, native, ours
from portakernel.integrations.first_calls import shortfall
from portakernel.runtime import contract_of
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.torch_internals import outside_modes
from portakernel.text.printable import exception_text

# So many queries, and so many keys, of a call are tried; drawn are fewer.
QUERIES, KEYS, DRAWN = 24, 4096, 40

Kind = tuple[Any, ...]


def kind_of(call: Call) -> Kind:
    """What calls have in common that one trial speaks for; plain constants, which a trace can hold.

    Lengths may be symbols there: words say how they compare.
    """
    mask = call.mask
    form = "" if mask is None else str(mask.dtype)
    shared = () if mask is None else tuple("one" if mask.shape[place] == 1 else "all" for place in (1, 2, 3))
    q, k, v = call.query, call.key, call.value
    sizes = (q.shape[2], k.shape[2], q.shape[3], v.shape[3])
    # where alignment shows
    lengths = "as many" if q.shape[1] == k.shape[1] else "other"
    return (str(q.dtype), str(q.device), *sizes, lengths, call.causal, call.scale, call.window, form, *shared)


def verdict(call: Call) -> str:
    """Why the op stands back from calls like this eager one; empty where it serves them."""
    mine, kind = client(NAME), kind_of(call)
    known = mine.verdict(LAYER, kind)
    if known is not None:
        return known
    if is_capturing():
        return "the first call of its kind came in the capture of a graph, where nothing can be tried"
    if not holds_numbers(call.query):  # of an export, or sharded
        return ""
    return mine.decide(LAYER, kind, _tried(_cut(call)) or _tried(_drawn(kind)))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]  # torch.compiler is untyped
def serves_in_trace(*kind: Any) -> bool:
    """Whether the op serves a call that is being traced. Counted here: the reason is no constant of the graph."""
    mine = client(NAME)
    held = mine.verdict(LAYER, kind)
    if held is None:
        held = mine.decide(LAYER, kind, _tried(_drawn(kind)))
    mine.ledger.count(OP, held, traced=True)
    return not held


def _tried(call: Call) -> str:
    with outside_modes(), torch.no_grad():
        own = native(call)
        truth = exact(call.doubled())
        try:
            given = ours(call)
        except (PortakernelError, RuntimeError) as error:
            return f"the op failed: {exception_text(error)}"
        return shortfall(given, own, truth, contract_of(OP).tolerance)


def _cut(call: Call) -> Call:
    """Some of a call's queries, with the keys that they see first; two of its heads where each has keys of its own."""
    q, k, v, mask = call.query.detach(), call.key.detach(), call.value.detach(), call.mask
    queries, keys = min(QUERIES, q.shape[1]), min(KEYS, k.shape[1])
    if call.causal:  # as many as queries: native attention and the op align them differently
        keys = queries
    heads = min(2, q.shape[2]) if q.shape[2] == k.shape[2] else q.shape[2]
    groups = heads if q.shape[2] == k.shape[2] else k.shape[2]
    if mask is not None:
        mask = mask.detach()[:1, :heads, :queries, :keys]
    return call.of(q[:1, :queries, :heads], k[:1, :keys, :groups], v[:1, :keys, :groups], mask)


def _drawn(kind: Kind) -> Call:
    """A call of a kind with drawn numbers: in a trace tensors have none, and a model's first ones may all be alike."""
    dtype_name, device, heads, groups, size, value_size, lengths, causal, scale, window, form, *shared = kind
    dtype: torch.dtype = getattr(torch, dtype_name.removeprefix("torch."))
    generator = torch.Generator().manual_seed(1)
    keys = QUERIES if lengths == "as many" else DRAWN

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    mask = None
    if form:
        shape = [1 if share == "one" else full for share, full in zip(shared, (heads, QUERIES, keys), strict=True)]
        numbers = torch.randn((2, *shape), generator=generator)
        # the first key is always seen: of a query that sees none, own results differ between torch's kernels
        hides = (numbers < -0.5) & (torch.arange(shape[-1]) > 0)
        if form == "torch.bool":
            mask = (~hides).to(device)
        else:
            mask_dtype: torch.dtype = getattr(torch, form.removeprefix("torch."))
            mask = numbers.masked_fill(hides, float("-inf")).to(mask_dtype).to(device)
    q, k, v = draw(2, QUERIES, heads, size), draw(2, keys, groups, size), draw(2, keys, groups, value_size)
    return Call(q, k, v, mask, causal, scale, window, heads != groups)
