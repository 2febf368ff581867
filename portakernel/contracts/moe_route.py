"""``moe_route``: which experts each token of a mixture of experts goes to, and with which weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Grid, GridRow, Parameter, Result, TensorArgument, Tolerance
from portakernel.contract.production import MIXTURES, Production

SCORINGS = ("softmax", "sigmoid", "softmax_of_chosen")


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Logits read once, a weight and an expert written for each choice; a score of each, and a comparison a choice."""
    tokens, experts, chosen = dims["M"], dims["E"], values["k"]
    moved = tokens * experts * itemsizes["logits"] + experts * itemsizes.get("bias", 0) + 8 * tokens * chosen
    return Cost(bytes=moved, flops=tokens * experts * (4 + chosen))


def _row(tokens: int, experts: int, k: int, *, bias: bool = False, core: bool = False, **values: Any) -> GridRow:
    shapes: dict[str, tuple[int, ...]] = {"logits": (tokens, experts)} | ({"bias": (experts,)} if bias else {})
    told = "".join(f" {value}" for name, value in values.items() if name == "scoring")
    groups = f" of {values['groups_kept']}/{values['groups']} groups" if "groups" in values else ""
    dtypes = {"bias": "float32"} if bias else {}
    return GridRow(f"{tokens} tokens E{experts} k{k}{told}{groups}", shapes, {"k": k, **values}, core, dtypes=dtypes)


# As DeepSeek-V3 has it: a bias that was learned to even the load, and 4 of 8 groups.
_GROUPED: Mapping[str, Any] = {"scoring": "sigmoid", "factor": 2.5, "groups": 8, "groups_kept": 4}


def _drawn(production: Production) -> GridRow:
    """A router of a model, as its configuration has it."""
    name, _, _, experts, k = production.one_of(MIXTURES)
    if name == "DeepSeek-V3":
        return _row(production.tokens(), experts, k, bias=True, **_GROUPED)
    scoring = "softmax_of_chosen" if name.startswith("gpt-oss") else "softmax"
    return _row(production.tokens(), experts, k, scoring=scoring, renormalize=production.at_times(0.7))


CONTRACT = Contract(
    op="moe_route",
    summary="The experts that each token of a mixture of experts goes to, and the weights of their results.",
    formula=(
        "experts = the k largest of logits, or of score(logits) + bias; weights = factor * score(logits)[experts], over"
        " their sum with renormalize"
    ),
    notes=(
        "logits: (*M, E), a row for each token; bias: (E,); weights: (*M, k) in float32, experts: (*M, k) in int32, in"
        " descending order of what decides. Scores are softmax over all experts, sigmoid of each, or softmax over the k"
        " chosen ones alone; with renormalize they are divided by the sum of the chosen ones'. What decides is the"
        " logit, which orders experts as their scores do, or with a bias score + bias in float32 (logit + bias for"
        " softmax_of_chosen); the bias decides who is chosen and is no part of weights, as DeepSeek-V3 evens the load"
        " of experts, and has no gradient. With groups, E experts are as many groups of neighbours, of which the"
        " groups_kept best are chosen from: by the largest number that decides, or with a bias by the sum of the two"
        " largest. Ties go to the lower expert and the lower group. NaN counts as -inf, in logits and in what decides."
        " Guaranteed, whatever logits and bias are: a row's experts are different, and from 0 to E-1, in kept groups; a"
        " row of nothing but -inf or NaN has weights 0. With softmax and softmax_of_chosen a logit of inf has all the"
        " weight, which several share equally; with sigmoid its score is 1. Everything is computed in float32."
        " Gradients of weights go to logits, and the choice counts as given. Not guaranteed: the order of experts, and"
        " which of them are chosen, where rounding decides between score + bias of two; equal bits from different"
        " kernels; weights and gradients that are subnormal in float32."
    ),
    tensors=(
        TensorArgument("logits", ("*M", "E"), ("float32", "float16", "bfloat16")),
        TensorArgument("bias", ("E",), ("float32", "logits"), optional=True, feature=True, keyword=True),
    ),
    parameters=(
        Parameter("k", None, kind="int", least=1, usual=(1, 2, 4, 6, 8), summary="how many experts a token goes to"),
        Parameter("scoring", "softmax", kind="text", choices=SCORINGS, summary="what is made of logits"),
        Parameter("renormalize", True, kind="bool", summary="weights are divided by their sum"),
        Parameter("factor", 1.0, summary="what weights are multiplied by in the end"),
        Parameter(
            "groups", 1, feature=True, kind="int", least=1, usual=(1, 2, 4, 8), summary="groups of neighbouring experts"
        ),
        Parameter(
            "groups_kept", 1, feature=True, kind="int", least=1, usual=(1, 2, 3), summary="groups that are chosen from"
        ),
    ),
    outputs=(
        Result("weights", ("*M", "$k"), like="logits", dtype="float32"),
        Result("experts", ("*M", "$k"), like="logits", dtype="int32", differentiable=False),
    ),
    kept=("logits", "experts"),
    requirements=("$k <= E", "$groups_kept <= $groups", "E % $groups == 0", "$k * $groups <= E * $groups_kept"),
    gradient="kernel",
    cases=(
        Case("one expert", (1,), {"E": 1}, parameters={"k": 1}),
        Case("one row", (), {"E": 64}, parameters={"k": 8}),
        Case("Mixtral", (33,), {"E": 8}, parameters={"k": 2}),
        Case("DeepSeek-V3", (19,), {"E": 256}, parameters={"k": 8, **_GROUPED}, present=("bias",)),
        Case(
            "DeepSeek-V2, groups of 20",
            (7,),
            {"E": 160},
            parameters={"k": 6, "renormalize": False, "factor": 16.0, "groups": 8, "groups_kept": 3},
        ),
        Case("gpt-oss", (13,), {"E": 128}, parameters={"k": 4, "scoring": "softmax_of_chosen"}),
        Case("60 experts, not renormalized", (2, 9), {"E": 60}, parameters={"k": 4, "renormalize": False}),
        Case("sigmoid", (6,), {"E": 72}, parameters={"k": 6, "scoring": "sigmoid", "renormalize": False}),
        Case("sigmoid, renormalized", (6,), {"E": 40}, parameters={"k": 5, "scoring": "sigmoid", "factor": -0.5}),
        Case("all experts", (5,), {"E": 8}, parameters={"k": 8}),
        Case("one of many", (5,), {"E": 384}, parameters={"k": 1, "renormalize": False}),
        Case("512 experts", (3,), {"E": 512}, parameters={"k": 10}),
        Case("many rows", (131,), {"E": 16}, parameters={"k": 2, "renormalize": False}),
        Case("no rows", (0,), {"E": 16}, parameters={"k": 2}),
        Case("softmax and a bias", (9,), {"E": 32}, parameters={"k": 4, "renormalize": False}, present=("bias",)),
        Case("softmax and a bias, renormalized", (9,), {"E": 33}, parameters={"k": 4}, present=("bias",)),
        Case(
            "softmax of chosen and a bias",
            (9,),
            {"E": 32},
            parameters={"k": 4, "scoring": "softmax_of_chosen"},
            present=("bias",),
        ),
        Case("groups without a bias", (9,), {"E": 32}, parameters={"k": 4, "groups": 4, "groups_kept": 2}),
        Case(
            "groups of one, a bias",
            (9,),
            {"E": 6},
            parameters={"k": 2, "scoring": "sigmoid", "groups": 6, "groups_kept": 3},
            present=("bias",),
        ),
        Case("sliced rows", (5,), {"E": 72}, {"logits": "sliced"}, {"k": 3}),
        Case("transposed", (6,), {"E": 33}, {"logits": "transposed"}, {"k": 3, "renormalize": False}),
        Case("expanded rows", (4,), {"E": 64}, {"logits": "expanded"}, {"k": 2}),
        Case(
            "every second column",
            (5,),
            {"E": 50},
            {"logits": "stepped", "bias": "stepped"},
            {"k": 5, "scoring": "sigmoid"},
            present=("bias",),
        ),
        Case("rows with two strides", (3, 4), {"E": 56}, {"logits": "split"}, {"k": 4}),
        Case("offset by one", (9,), {"E": 80}, {"logits": "offset"}, {"k": 8}),
        Case("equal logits", (7,), {"E": 48}, {}, {"k": 6}, values="zeros"),
        Case("equal logits in groups", (7,), {"E": 48}, {}, {"k": 6, "groups": 4, "groups_kept": 2}, values="zeros"),
        Case("large magnitudes", (6,), {"E": 90}, {}, {"k": 4}, values="large"),
        Case("large, sigmoid", (6,), {"E": 90}, {}, {"k": 4, "scoring": "sigmoid"}, values="large"),
        Case("tiny magnitudes", (6,), {"E": 90}, {}, {"k": 4, "renormalize": False}, values="tiny"),
        Case("NaN, infinities, signed zeros", (12,), {"E": 70}, {}, {"k": 8}, values="special", backward=False),
        Case(
            "NaN and infinities, not renormalized",
            (12,),
            {"E": 70},
            {},
            {"k": 8, "renormalize": False},
            values="special",
            backward=False,
        ),
        Case(
            "NaN and infinities, sigmoid, groups and a bias",
            (12,),
            {"E": 64},
            {},
            {"k": 8, **_GROUPED},
            values="special",
            backward=False,
            present=("bias",),
        ),
    ),
    # Measured at the magnitudes that the reference gives: what rounds exponents moves a weight by more than its last
    # place. A sum of k weights or E exponentials, an exponential and a division are a few units each.
    tolerance=Tolerance(
        forward={"float32": 16.0},
        backward={"float32": 64.0, "float16": 0.51, "bfloat16": 0.51},
        flushed="all",
    ),
    grid=Grid(
        (
            _row(4096, 256, 8, core=True),
            _row(64, 256, 8, core=True),
            _row(4096, 256, 8, bias=True, **_GROUPED),
            _row(64, 256, 8, bias=True, **_GROUPED),
            _row(8192, 128, 8),
            _row(8192, 8, 2),
            _row(4096, 128, 4, scoring="softmax_of_chosen"),
            _row(4096, 64, 8, renormalize=False),
        ),
        _row(4, 8, 2),
        _drawn,
    ),
    cost=cost,
    in_graphs="inline",
    source=(
        "Shazeer et al. 2017, Outrageously Large Neural Networks, arXiv 1701.06538; Mixtral, arXiv 2401.04088, 2.1;"
        " DeepSeek-V2, arXiv 2405.04434, 2.2.2 (groups); DeepSeek-V3, arXiv 2412.19437, 2.1.2 (sigmoid and a bias)"
    ),
)
