"""``PORTAKERNEL_CHECKS=1``: each way to a kernel looks at the numbers in tensors first; without it, none does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import torch

from portakernel.calling import value_checks
from portakernel.calling.block_checks import check_blocks
from portakernel.calling.bound_kernel import bind_kernel
from portakernel.calling.caller import OpCaller
from portakernel.calling.fast import bound_source, out_source, public_source
from portakernel.calling.launcher import launcher
from portakernel.calling.public import public_function
from portakernel.config import Config
from portakernel.contract.value_rules import BlockCounts, Blocks, Ends, Experts, Groups, Indices, Lengths, Pages, Slots
from portakernel.contracts import contract, own_contracts
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.registry.plugin_manager import Package, PluginManager, find_folder
from portakernel.registry.registry import Registry
from portakernel.torch_bridge.registration import Bridge
from portakernel_kit.conformance.inputs import Inputs, draw_inputs, generator

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
_namespaces = itertools.count()
OPS = (
    "embedding_bag",
    "cross_entropy",
    "linear_cross_entropy",
    "rotary_embedding",
    "attention_varlen",
    "grouped_mm",
    "moe_mlp",
    "rms_norm",
    "block_sparse_attention",
)
# Ops that return nothing; how calls of them are looked at is in test_serving_checks.py and test_written_caches.py.
WRITING = ("write_kv_cache", "write_latent_cache")
# Ops without gradients.
SERVING = ("mla_decode", "moe_sort", "paged_attention")
# Ops on weights of four bits.
INT4 = ("int4_mm", "pack_int4")


@dataclass
class Checked:
    """The ops of one dispatcher, and what keeps their registrations."""

    bridges: dict[str, Bridge]

    def caller(self, op: str) -> OpCaller:
        return self.bridges[op].caller

    def __getattr__(self, op: str) -> Callable[..., Any]:
        return public_function(self.bridges[op].caller)


def made(*, checks: bool, also: Mapping[str, str] = MappingProxyType({})) -> Checked:
    modules = {"torch": "portakernel_plugins.torch", "cpu": "portakernel_backends.cpu", **also}
    packages = [
        Package(name, module, "portakernel", "1.0", find_folder(module), first_party=True)
        for name, module in modules.items()
    ]
    dispatcher = Dispatcher(Registry(PluginManager(packages)), Config(checks=checks))
    namespace = f"portakernel_values_{next(_namespaces)}"
    return Checked({op: Bridge(OpCaller(contract(op), dispatcher, namespace)) for op in OPS + SERVING + INT4})


@pytest.fixture(scope="module")
def checked() -> Checked:
    return made(checks=True)


@pytest.fixture(scope="module")
def unchecked() -> Checked:
    return made(checks=False)


def ints(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def rows(*shape: int, **more: Any) -> torch.Tensor:
    return torch.ones(shape, **more)


def varlen(queries: tuple[int, ...], keys: tuple[int, ...], **more: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    ends = [ints(*each, dtype=torch.int32) for each in (queries, keys)]
    return [rows(6, 2, 8), rows(9, 2, 8), rows(9, 2, 8), *ends], more


def bag(indices: tuple[int, ...], offsets: tuple[int, ...]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    return [rows(5, 4), ints(*indices), ints(*offsets)], {}


def turned(*positions: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    table = rows(4, 2)
    return [rows(2, 2, 1, 4), rows(2, 2, 1, 4), table, table, ints(*positions).view(2, 2)], {}


def listed(count: int, *blocks: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """A list of blocks of 64 keys, of which there are three."""
    lists = [ints(count, dtype=torch.int32).view(1, 1, 1), ints(*blocks, dtype=torch.int32).view(1, 1, 1, -1)]
    return [rows(1, 5, 1, 8), rows(1, 150, 1, 8), rows(1, 150, 1, 8), *lists], {"block": "64x64"}


def ordered(*order: int, layout: str = "gptq") -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    """Eight columns of a weight, in two groups of any size; in a packed layout with their groups behind."""
    weight = torch.zeros((1, 8) if layout == "gptq" else (1, 8, 16), dtype=torch.int32)
    places = ints(*order, dtype=torch.int32).view((8,) if layout == "gptq" else (2, 8))
    return [rows(1, 8), weight, rows(2, 8), None, places], {"layout": layout, "group": 0}


def pieces(*ends: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Five rows of three experts."""
    return [rows(5, 8), rows(3, 4, 8), ints(*ends)], {}


def assigned(*experts: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Three tokens, each with two of four experts."""
    return [rows(3, 8), rows(4, 6, 8), rows(4, 8, 3), rows(3, 2), ints(*experts, dtype=torch.int32).view(3, 2)], {}


WRONG = [
    ("grouped_mm", pieces(0, 4, 2, 5), "offsets[2] is 2; it must be at least offsets[1] = 4"),
    ("grouped_mm", pieces(0, 2, 4, 6), "offsets[3] is 6; it must be at most M = 5"),
    ("grouped_mm", pieces(1, 2, 4, 5), "offsets[0] is 1; it must be 0"),
    ("grouped_mm", pieces(0, 1, 2**32 + 2, 5), "offsets[2] is 4294967298; it must be at most M = 5"),
    (
        "moe_mlp",
        assigned(0, 1, -1, 4, 0, 0),
        "experts[1, 1] is 4; it must be in [0, E) with E = 4, or -1 for one that is not here",
    ),
    (
        "moe_mlp",
        assigned(0, 1, -1, 3, -2, 0),
        "experts[2, 0] is -2; it must be in [0, E) with E = 4, or -1 for one that is not here",
    ),
    (
        "int4_mm",
        ordered(0, 0, 1, 2, 0, 0, 0, 0),
        "order[3] is 2; it must be in [0, 2), the groups of scales",
    ),
    (
        "int4_mm",
        ordered(0, 1, 2, 3, 4, 8, 6, 7, *[0] * 8, layout="packed_mma"),
        "order[0, 5] is 8; it must be in [0, 8), the columns",
    ),
    (
        "int4_mm",
        ordered(0, 1, 2, 3, 4, 5, 6, 7, *[0] * 7, -1, layout="packed_mma"),
        "order[1, 7] is -1; it must be in [0, 2), the groups of scales",
    ),
    (
        "block_sparse_attention",
        listed(3, 0, 1),
        "partial_count[0, 0, 0] is 3; it must be from 0 to 2, for which the list has room (C)",
    ),
    (
        "block_sparse_attention",
        listed(2, 0, 3, 9),
        (
            "partial_index[0, 0, 0, 1] is 3; it must be in [0, 3), the blocks of T = 150, because"
            " partial_count[0, 0, 0] is 2"
        ),
    ),
    (
        "block_sparse_attention",
        listed(3, 1, 2, 1, 7),
        "partial_index[0, 0, 0, 2] is 1, and so is partial_index[0, 0, 0, 0]; a list has each block once",
    ),
    (
        "block_sparse_attention",
        ([*listed(2, 0, 1)[0], *listed(1, 1, 0)[0][3:]], {"block": "64x64"}),
        "full_index[0, 0, 0] and partial_index[0, 0, 0] both list block 1; a block is on one list of its row",
    ),
    ("embedding_bag", bag((0, 4, 5), (0, 1)), "indices[2] is 5; it must be in [0, V) with V = 5"),
    ("embedding_bag", bag((0, -1, 5), (0, 1)), "indices[1] is -1; it must be in [0, V) with V = 5"),
    ("embedding_bag", bag((0, 1, 2), (1, 2)), "offsets[0] is 1; it must be 0"),
    ("embedding_bag", bag((0, 1, 2), (0, 2, 1)), "offsets[2] is 1; it must be at least offsets[1] = 2"),
    ("embedding_bag", bag((0, 1, 2), (0, 4)), "offsets[1] is 4; it must be at most I = 3"),
    (
        "cross_entropy",
        ([rows(2, 3, 7), ints(0, 1, 2, 6, 7, -100).view(2, 3)], {}),
        "target[1, 1] is 7; it must be in [0, V) with V = 7, or ignore_index = -100",
    ),
    (
        "cross_entropy",
        ([rows(2, 7), ints(-100, 9)], {"ignore_index": 9}),
        "target[0] is -100; it must be in [0, V) with V = 7, or ignore_index = 9",
    ),
    (
        "cross_entropy",
        ([rows(7), torch.tensor(7)], {}),
        "target is 7; it must be in [0, V) with V = 7, or ignore_index = -100",
    ),
    (
        "linear_cross_entropy",
        ([rows(2, 4), rows(7, 4), ints(3, 8)], {}),
        "target[1] is 8; it must be in [0, V) with V = 7, or ignore_index = -100",
    ),
    ("rotary_embedding", turned(0, 3, 4, 1), "positions[1, 0] is 4; it must be in [0, L) with L = 4"),
    ("attention_varlen", varlen((1, 6), (0, 9)), "cu_seqlens_q[0] is 1; it must be 0"),
    ("attention_varlen", varlen((0, 7), (0, 9)), "cu_seqlens_q[1] is 7; it must be at most S = 6"),
    ("attention_varlen", varlen((0, 3, 6), (0, 9, 8)), "cu_seqlens_k[2] is 8; it must be at least cu_seqlens_k[1] = 9"),
    (
        "attention_varlen",
        varlen((0, 1, 6), (0, 1, 9), max_seqlen_q=4),
        "max_seqlen_q is 4, but cu_seqlens_q[1] to cu_seqlens_q[2] are 5; it must be at least that, or None",
    ),
]
NAMES = [f"{op}: {text.partition(';')[0]}" for op, _, text in WRONG]


def paged(
    lengths: tuple[int, int], starts: tuple[int, ...], pages: tuple[int, ...], **more: Any
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    table = ints(*pages, dtype=torch.int32).view(2, 2)
    caches = [rows(3, 4, 2, 8), rows(3, 4, 2, 8)]
    ends = [ints(*each, dtype=torch.int32) for each in (lengths, starts)]
    return [rows(3, 2, 8), *caches, table, *ends], more


WRONG_PAGES = [
    (
        paged((5, 9), (0, 1, 3), (0, 1, 2, 0)),
        "seq_lens[1] is 9; it must be in [0, W*P] with W*P = 8: there is room for no more tokens",
    ),
    (
        paged((5, 4), (0, 1, 3), (0, 3, 2, 9)),
        (
            "block_table[0, 1] is 3; it must be in [0, NP) with NP = 3, because seq_lens[0] is 5, which reaches 2 pages"
            " of P = 4: give the page that holds the tokens, or a smaller length"
        ),
    ),
    (paged((5, 4), (0, 2, 1), (0, 1, 2, 9)), "query_start_loc[2] is 1; it must be at least query_start_loc[1] = 2"),
    (paged((5, 4), (0, 1, 4), (0, 1, 2, 9)), "query_start_loc[2] is 4; it must be at most S = 3"),
    (
        paged((5, 4), (0, 1, 3), (0, 1, 2, 9), max_seqlen_k=4),
        "max_seqlen_k is 4, but seq_lens[0] is 5; it must be at least that, or None",
    ),
]


@pytest.mark.parametrize("how", ["public", "known form", "out", "torch op", "bound", "compiled"])
@pytest.mark.parametrize(("call", "text"), WRONG_PAGES, ids=[text.partition(";")[0] for _, text in WRONG_PAGES])
def test_every_way_to_paged_attention_looks_first(checked, how, call, text):
    tensors, more = call
    kind = IndexOutOfRangeError if "in [0, NP)" in text else ArgumentValueError
    found = ways(checked, how, "paged_attention", tensors, more)
    with pytest.raises(kind, match=f"^{re.escape(f'paged_attention: {text}')}$"):
        found()


def test_pages_of_latent_vectors_are_looked_at_too(checked):
    caches = [rows(3, 4, 16), rows(3, 4, 8)]
    ends = [ints(*each, dtype=torch.int32) for each in ((5, 9), (0, 1, 3))]
    tensors = [rows(3, 2, 16), rows(3, 2, 8), *caches, ints(0, 1, 2, 0, dtype=torch.int32).view(2, 2), *ends]
    text = "mla_decode: seq_lens[1] is 9; it must be in [0, W*P] with W*P = 8: there is room for no more tokens"
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(text)}$"):
        checked.mla_decode(*tensors, scale=0.1)


def test_entries_behind_a_sequence_s_last_page_may_be_anything(checked):
    tensors, more = paged((5, 4), (0, 1, 3), (0, 1, 2, -99))
    assert checked.paged_attention(*tensors, **more).shape == (3, 2, 8)


@pytest.mark.parametrize("how", ["public", "known form", "out", "torch op", "training", "jvp", "bound", "compiled"])
@pytest.mark.parametrize(("op", "call", "text"), WRONG, ids=NAMES)
def test_every_way_to_a_kernel_looks_first(checked, how, op, call, text):
    tensors, more = call
    kind = IndexOutOfRangeError if "in [0, " in text else ArgumentValueError
    found = ways(checked, how, op, tensors, more)
    with pytest.raises(kind, match=f"^{re.escape(f'{op}: {text}')}$") as caught:
        found()
    assert type(caught.value) is kind


def ways(ops: Checked, how: str, op: str, tensors: list[torch.Tensor], more: dict[str, Any]) -> Callable[[], Any]:
    """The call, made so."""
    function, caller = getattr(ops, op), ops.caller(op)
    names, values = contract(op).names, caller.arguments.canonical(tuple(contract(op).values(more).values()))
    optional = [None] * (len(names) - len(tensors))
    right = [sound(op, name, tensor) for name, tensor in zip(names, tensors, strict=False)]
    loose = {name: value for name, value in more.items() if not name.startswith("max_")}
    match how:
        case "known form":
            function(*right, **loose)
        case "out":
            made = function(*right, **loose)
            out = tuple(map(torch.empty_like, made)) if isinstance(made, tuple) else torch.empty_like(made)
            return lambda: function(*tensors, **more, out=out)
        case "torch op":
            return lambda: caller.torch_op()(*tensors, *optional, *values, "")
        case "training":
            leaf = tensors[0].clone().requires_grad_()
            function(leaf, *right[1:], **loose)
            return lambda: function(leaf, *tensors[1:], **more)
        case "jvp":
            return lambda: torch.func.jvp(partial(_of_first, function, tensors, more), (tensors[0],), (tensors[0],))
        case "bound":
            bound = bind_kernel(caller, [*right, *optional], tuple(contract(op).values(more).values()), None)
            return lambda: bound(*tensors, **more)
        case "compiled":
            return lambda: torch.compile(function, backend="aot_eager", fullgraph=True)(*tensors, **more)
    return lambda: function(*tensors, **more)


def _of_first(
    function: Callable[..., Any], tensors: list[torch.Tensor], more: dict[str, Any], first: torch.Tensor
) -> Any:
    return function(first, *tensors[1:], **more)


def sound(op: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same form whose numbers are such as the op is defined for."""
    return tensor if contract(op).tensor(name).rule is None else torch.zeros_like(tensor)


def test_what_is_right_goes_through_and_is_counted(checked):
    weight, indices, offsets = bag((0, 4, 4), (0, 3))[0]
    assert torch.equal(checked.embedding_bag(weight, indices, offsets), torch.stack([rows(4) * 3, rows(4) * 0]))
    empty = checked.embedding_bag(weight, indices[:0], offsets[:0])
    assert empty.shape == (0, 4)
    logits = torch.randn(3, 7)
    beyond = (1 << 40) + 3  # whose lower 32 bits are a class
    loss = checked.cross_entropy(logits, ints(6, beyond, 0), ignore_index=beyond)
    assert (loss[1].item(), loss.shape) == (0.0, (3,))
    (tensors, more) = varlen((0, 0, 4), (0, 5, 5), max_seqlen_q=4, max_seqlen_k=5)  # rows behind the last end: padding
    assert checked.attention_varlen(*tensors, **more).shape == (6, 2, 8)
    assert torch.equal(checked.rotary_embedding(*turned(0, 1, 2, 3)[0])[0][..., 2:], rows(2, 2, 1, 2) * 2)


def test_a_batch_of_calls_is_looked_at_one_by_one(checked):
    logits, target = torch.randn(2, 3, 7), ints(0, 1, 2, 3, 4, 7).view(2, 3)
    with pytest.raises(IndexOutOfRangeError, match=r"is 7; it must be in \[0, V\) with V = 7"):
        torch.func.vmap(checked.cross_entropy)(logits, target)


def test_tracing_looks_at_nothing_and_the_graph_looks_when_it_runs(checked, monkeypatch):
    asked = []
    monkeypatch.setattr(value_checks, "check_values", lambda _, arguments: asked.append(arguments["target"].tolist()))
    compiled = torch.compile(checked.cross_entropy, backend="aot_eager", fullgraph=True)
    for target in (ints(0, 1), ints(2, 3)):
        compiled(rows(2, 7), target)
    assert asked == [[0, 1], [2, 3]]


RECORDED = """
schema_version: 1
plugin_api: 2
plugin: recorded
kernels:
  - op: cross_entropy
    entry: recorded.kernels:cross_entropy
    saves: autograd
    targets: {cpu: any}
    dtypes: {logits: [float32], target: [int64]}
    priority: 99
"""
KERNEL = """
import torch

def cross_entropy(logits, target, *, ignore_index, overwrite_logits, out=None):
    return torch.log_softmax(logits, -1).gather(-1, target.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0].neg()
"""


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
def test_a_graph_holds_the_op_and_not_what_a_recorded_kernel_is_made_of(tmp_path, monkeypatch):
    folder = tmp_path / "recorded"
    folder.mkdir()
    for name, text in {"__init__.py": "", "plugin.yaml": RECORDED, "kernels.py": KERNEL}.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for checks in (False, True):
        ops = made(checks=checks, also={"recorded": "recorded"})
        logits = torch.randn(2, 7, requires_grad=True)
        assert ops.caller("cross_entropy").some_are_recorded
        compiled = torch.compile(ops.cross_entropy, backend="aot_eager", fullgraph=True)
        compiled(logits, ints(1, 2)).sum().backward()
        if checks:
            with pytest.raises(IndexOutOfRangeError, match=r"^cross_entropy: target\[1\] is 7; "):
                compiled(logits, ints(1, 7))
        else:
            assert compiled(logits, ints(1, 7)).isfinite().all()


def test_while_a_stream_is_captured_nothing_is_looked_at(checked, monkeypatch):
    logits, target = rows(2, 7), ints(1, 2)
    checked.cross_entropy(logits, target)
    monkeypatch.setattr(value_checks, "is_capturing", lambda: True)
    monkeypatch.setattr(value_checks, "check_values", lambda *_: pytest.fail("looked at values"))
    assert checked.cross_entropy(logits, target).shape == (2,)


def test_meta_tensors_have_no_numbers():
    described = contract("cross_entropy")
    given = {**described.values(), "logits": rows(2, 7).to("meta"), "target": ints(8, 9).to("meta")}
    value_checks.check_values(described, given)


def test_an_op_without_rules_is_not_wrapped(checked):
    assert not checked.caller("rms_norm").checks_values
    assert checked.caller("cross_entropy").checks_values


@pytest.mark.parametrize("op", OPS)
def test_without_the_variable_no_source_differs_and_no_placement_is_wrapped(op, monkeypatch):
    plain: Callable[..., Any] = public_source.define

    def noted(checks: bool) -> tuple[OpCaller, dict[str, list[str]]]:
        """The op's caller after a call and a bound one, and the sources that were generated for them."""
        found: dict[str, list[str]] = {"before a call": [], "bound": []}
        when = "before a call"

        def noting(source: str, name: str, *more: Any, **kinds: Any) -> Any:
            found[when].append(source)
            return plain(source, name, *more, **kinds)

        for module in (public_source, out_source, bound_source):
            monkeypatch.setattr(module, "define", noting)
        ops = made(checks=checks)
        function, inputs = getattr(ops, op), drawn(op)
        values = dict(zip(ops.caller(op).arguments.parameters, inputs.values, strict=True))
        function(**dict(zip(contract(op).names, inputs.tensors, strict=True)), **values)
        when = "bound"
        bind_kernel(ops.caller(op), inputs.tensors, inputs.values, None)
        return ops.caller(op), found

    (without, sources), (with_checks, checking) = noted(False), noted(True)
    assert sources["before a call"] == checking["before a call"]
    assert not any("check_values" in source for source in itertools.chain(*sources.values()))
    (placement,) = without.table.entries.values()
    bare = launcher(contract(op), placement.kernel, placement.decision.request, without.dispatcher)
    assert placement.run.__code__.co_code == bare.__code__.co_code
    assert any("return kernel(" in source or " else kernel(" in source for source in sources["bound"])
    ruled = op != "rms_norm"
    assert (sources["bound"] == checking["bound"]) is not ruled
    (wrapped,) = with_checks.table.entries.values()
    assert (wrapped.run.__code__.co_name == "looked_at") is ruled


def drawn(op: str) -> Inputs:
    """The arguments of a case of the op, contiguous and in its first dtypes."""
    described = contract(op)
    case = next(case for case in described.cases if not case.layouts and 0 not in case.dims.values())
    dtypes: dict[str, str] = {}
    for name in described.typed:
        accepted = described.accepted_dtypes(name, dtypes)[0]
        dtypes[name] = dtypes.get(accepted, accepted)
    return draw_inputs(described, case, dtypes, "cpu", generator(0, op, case.name))


def test_a_rule_is_what_the_kit_draws_by():
    kinds = {"index": Indices, "segments": Ends, "offsets": Ends}
    kinds |= {"block_counts": BlockCounts, "blocks": Blocks, "groups": Groups}
    kinds |= {"lengths": Lengths, "pages": Pages, "slots": Slots, "experts": Experts}
    every = [(op, tensor) for op, described in own_contracts().items() for tensor in described.tensors]
    expected = {(op, tensor.name): kinds[tensor.draw.kind] for op, tensor in every if tensor.draw.kind in kinds}
    ruled = {(op, tensor.name): tensor.rule for op, tensor in every if tensor.rule is not None}
    assert {place: type(rule) for place, rule in ruled.items()} == expected
    assert {op for op, _ in ruled} == {*OPS, *WRITING, *SERVING, *INT4} - {"rms_norm"}


@pytest.mark.parametrize("op", sorted({*OPS, *WRITING, *SERVING, *INT4} - {"rms_norm"}))
def test_every_case_of_the_kit_is_accepted(op):
    described = contract(op)
    for case in described.cases:
        dtypes: dict[str, str] = {}
        for name in described.typed:
            dtypes[name] = described.accepted_dtypes(name, dtypes)[0]
        inputs = draw_inputs(described, case, dtypes, "cpu", generator(0, op, case.name))
        named = dict(zip(described.names, inputs.tensors, strict=True))
        values = dict(zip((p.name for p in described.parameters), inputs.values, strict=True))
        value_checks.check_values(described, {**named, **values})


def test_counts_without_indices_are_left_to_what_refuses_them():
    rule = BlockCounts("F")
    assert check_blocks("block_sparse_attention", "full_count", ints(1).view(1, 1, 1), rule, {"T": 5}, {}) is None
