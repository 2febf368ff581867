"""``moe_mlp``: the gated layers of a mixture of experts, for each token those of its experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import (
    Case,
    Choice,
    Contract,
    Cost,
    Draw,
    Grid,
    GridRow,
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
)
from portakernel.contract.production import MIXTURES, Production
from portakernel.contract.value_rules import Experts
from portakernel.contracts.scaled_mm import FLOATS

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swiglu_oai")
HALVES = ("concat", "interleaved")
FORMATS = ("none", "row", "block", "mxfp4")
_BLOCK, _NARROW = 128, 32
# Those without infinities: no row of gated numbers may have one, of which nothing could be scaled.
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz")


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Tokens read and written once, and matrices of experts that some token has; a product and a sum for each term."""
    T, H, width, E, K = (dims[name] for name in "THIEK")
    experts, layout = min(E, T * K), values["format"]
    narrow, wide, packed = layout in ("row", "block"), layout == "block", 2 if layout == "mxfp4" else 1
    moved = T * H * (itemsizes["x"] + (2 if narrow else itemsizes["x"]))
    moved += experts * 3 * width * H * itemsizes["w_in"] // packed
    moved += experts * (2 * width * itemsizes.get("bias_in", 0) + H * itemsizes.get("bias_out", 0))
    if packed == 2:
        moved += experts * (2 * width * -(-H // _NARROW) + H * -(-width // _NARROW))
    if narrow:
        across, inner = -(-H // _BLOCK), -(-width // _BLOCK)
        moved += 4 * T * (across if wide else 1)
        moved += 4 * experts * ((-(-2 * width // _BLOCK) * across + across * inner) if wide else 2 * width + H)
    moved += T * K * (itemsizes["weights"] + itemsizes["experts"])
    return Cost(bytes=moved, flops=6 * T * K * width * H)


def _case(name: str, T: int, H: int, I: int, E: int, K: int, **how: Any) -> Case:  # noqa: E741 - as in the contract
    layout, biases = how.get("parameters", {}).get("format", "none"), how.pop("biases", False)
    present = {"none": (), "mxfp4": ("scale_in", "scale_out")}.get(layout, ("scale_x", "scale_in", "scale_out"))
    present += ("bias_in", "bias_out") if biases else ()
    how = {"present": present, "backward": layout == "none", **how}
    return Case(name, dims={"T": T, "H": H, "I": I, "E": E, "K": K}, **how)


def _row(
    tokens: int, hidden: int, width: int, experts: int, k: int, format: str = "none", *, core: bool = False
) -> GridRow:
    shapes: dict[str, tuple[int, ...]] = {"x": (tokens, hidden), "w_in": (experts, 2 * width, hidden)}
    shapes |= {"w_out": (experts, hidden, width), "weights": (tokens, k), "experts": (tokens, k)}
    if format == "row":
        shapes |= {"scale_x": (tokens, 1), "scale_in": (experts, 2 * width, 1), "scale_out": (experts, hidden, 1)}
    if format == "block":
        across, inner, outer = (-(-size // _BLOCK) for size in (hidden, width, 2 * width))
        shapes |= {"scale_x": (tokens, across), "scale_in": (experts, outer, across)}
        shapes |= {"scale_out": (experts, across, inner)}
    told, values = ("", {}) if format == "none" else (f" {format}", {"format": format})
    name = f"{tokens} tokens E{experts} k{k} {hidden}×{width}{told}"
    return GridRow(name, shapes, values, core, dtypes={"weights": "float32"}, trained=format == "none")


def _drawn(production: Production) -> GridRow:
    """The experts of a model's layer."""
    _, hidden, width, experts, k = production.one_of(MIXTURES)
    return _row(min(production.tokens(), (1 << 16) // k), hidden, width, experts, k)


def _scales(
    name: str, row: tuple[str, ...], block: tuple[str, ...], narrow: tuple[str, ...] | None = None
) -> TensorArgument:
    dtypes = dict.fromkeys(FORMATS, ("float32",)) | ({} if narrow is None else {"mxfp4": ("float8_e8m0fnu",)})
    return TensorArgument(
        name,
        Choice("format", {"none": row, "row": row, "block": block, "mxfp4": narrow or row}),
        Choice("format", dtypes),
        optional=True,
        feature=True,
        keyword=True,
        draw=Draw("scale"),
    )


def _matrix(name: str, rows: str, columns: str) -> TensorArgument:
    shapes = dict.fromkeys(FORMATS, ("E", rows, columns)) | {"mxfp4": ("E", rows, f"{columns}/2")}
    dtypes = dict.fromkeys(FORMATS, ("x",)) | {"mxfp4": ("float4_e2m1fn_x2",)}
    return TensorArgument(name, Choice("format", shapes), Choice("format", dtypes))


def _bias(name: str, width: str) -> TensorArgument:
    return TensorArgument(name, ("E", width), _BESIDE_X, optional=True, feature=True, keyword=True)


# Of float8 x nothing else has the dtype.
_BESIDE_X: Choice[tuple[str, ...]] = Choice(
    "format", {"none": (*FLOATS, "x"), "row": FLOATS, "block": FLOATS, "mxfp4": (*FLOATS, "x")}
)

CONTRACT = Contract(
    op="moe_mlp",
    summary="The gated layers of each token's experts, added up with its weights: what follows a router.",
    formula=(
        "y[t] = sum over j of weights[t, j] * ((activation(gate) * up) @ w_out[e].T + bias_out[e]), with e ="
        " experts[t, j] and gate, up the halves of x[t] @ w_in[e].T + bias_in[e]"
    ),
    notes=(
        "x: (T, H), a row for each token; w_in: (E, 2I, H) and w_out: (E, H, I), each expert's matrices as linear"
        " layers keep them; weights and experts: (T, K), as moe_route gives them; y: (T, H). halves says how w_in's"
        " rows are gate and up: 'concat', I of gate and then I of up; 'interleaved', gate and up in turn. vLLM's"
        " fused_experts(hidden_states, w1, w2, topk_weights, topk_ids) takes the same in the same order. An expert of"
        " -1 is on another device: it adds nothing, whatever its weight, and a token of none but these is zeros. A row"
        " may have an expert twice. Products are summed in float32, and so are a token's results, in the order of its"
        " experts; gated rows, and each expert's results, may be rounded to x's dtype once in between. Equal calls give"
        " equal bits: no sum depends on the order in which anything runs. bias_in: (E, 2I), in w_in's order of rows,"
        " and bias_out: (E, H) are added to the products. activation='swiglu_oai' is gpt-oss' gate: (up + 1) * gate *"
        " sigmoid(1.702 * gate) of gates of at most 7 and ups from -7 to 7. Gradients go to x, w_in, w_out, weights and"
        " biases; an expert without tokens has zeros. format='row' and 'block' are for float8 x, w_in and w_out, with"
        " scales that multiply: scale_x: (T, 1), scale_in: (E, 2I, 1) and scale_out: (E, H, 1), or of blocks of 128"
        " scale_x: (T, ceil(H/128)), scale_in: (E, ceil(2I/128), ceil(H/128)) and scale_out: (E, ceil(H/128),"
        " ceil(I/128)), as quantize_fp8 gives them for row, block_1x128 and, of each matrix, block_128x128. y is"
        " bfloat16 then. A kernel quantises gated rows too, by row or by 128 numbers of one; the reference leaves them"
        " as they are. The tolerance has room for that: for each row of y twice the distance, from the float64 formula"
        " without it, of layers in bfloat16 whose gated rows are quantised so. format='mxfp4' has weights of four bits"
        " alone, beside x as it is: w_in (E, 2I, H/2) and w_out (E, H, I/2) of float4_e2m1fn_x2, scale_in: (E, 2I,"
        " ceil(H/32)) and scale_out: (E, H, ceil(I/32)) of float8_e8m0fnu, as quantize_fp4 gives them. Weights times"
        " their scales may be rounded to x's dtype. There are gradients for format='none' alone. Scales that a format"
        " has not, or lacks, are refused (ArgumentValueError), and so is E = 0, even without tokens. Not guaranteed:"
        " equal bits from different kernels, or for a token among other tokens; all 24 bits of float32 products where"
        " torch.backends.cuda.matmul allows fewer; any result for experts below -1 or from E on (refused with"
        " PORTAKERNEL_CHECKS=1)."
    ),
    tensors=(
        TensorArgument(
            "x", ("T", "H"), Choice("format", {"none": FLOATS, "row": _FLOAT8, "block": _FLOAT8, "mxfp4": FLOATS})
        ),
        _matrix("w_in", "2I", "H"),
        _matrix("w_out", "H", "I"),
        TensorArgument("weights", ("T", "K"), _BESIDE_X),
        TensorArgument(
            "experts",
            ("T", "K"),
            ("int32", "int64"),
            draw=Draw("experts", below="E", absent=True),
            rule=Experts("E", absent=True),
        ),
        _scales("scale_x", ("T", "1"), ("T", "ceil(H/128)")),
        _scales("scale_in", ("E", "2I", "1"), ("E", "ceil(I/64)", "ceil(H/128)"), ("E", "2I", "ceil(H/32)")),
        _scales("scale_out", ("E", "H", "1"), ("E", "ceil(H/128)", "ceil(I/128)"), ("E", "H", "ceil(I/32)")),
        _bias("bias_in", "2I"),
        _bias("bias_out", "H"),
    ),
    parameters=(
        Parameter("activation", "silu", kind="text", choices=ACTIVATIONS, summary="what is made of the gate"),
        Parameter(
            "halves", "concat", feature=True, kind="text", choices=HALVES, summary="how w_in's rows are gate and up"
        ),
        Parameter(
            "format",
            "none",
            feature=True,
            kind="text",
            choices=FORMATS,
            summary="which elements of narrow x, w_in and w_out share a scale",
        ),
    ),
    outputs=(
        Result(
            "y",
            ("T", "H"),
            like="x",
            dtype=Choice("format", {"none": "", "row": "bfloat16", "block": "bfloat16", "mxfp4": ""}),
        ),
    ),
    kept=("x", "w_in", "w_out", "weights", "experts", "bias_in", "bias_out"),
    requirements=("E > 0",),
    gradient="kernel",
    autocast="cast",
    cases=(
        _case("one element", 1, 1, 1, 1, 1),
        _case("a few tokens", 5, 32, 24, 4, 2),
        _case("many experts, few tokens", 6, 48, 16, 40, 4),
        _case("one token", 1, 64, 32, 16, 8),
        _case("many tokens", 150, 40, 24, 3, 2),
        _case("several tiles of columns", 9, 72, 150, 3, 2),
        # More elements than a wave, fewer than a program's threads: several waves load the same ones.
        _case("fewer columns than threads", 5, 16, 72, 3, 2),
        _case("fewer columns than threads, interleaved", 5, 16, 72, 3, 2, parameters={"halves": "interleaved"}),
        _case("odd sizes", 13, 53, 29, 5, 3),
        _case("one expert", 37, 40, 24, 1, 1),
        _case("an expert has all", 20, 40, 24, 4, 1, given={"experts": (2,) * 20}),
        _case(
            "some experts are elsewhere", 4, 40, 24, 4, 3, given={"experts": (0, -1, 3, -1, 1, 2, -1, -1, -1, 3, 2, -1)}
        ),
        _case("all experts are elsewhere", 3, 24, 16, 4, 2, given={"experts": (-1,) * 6}),
        _case("an expert twice in a row", 3, 24, 16, 4, 2, given={"experts": (1, 1, 3, 0, 0, 0)}),
        _case("gelu", 11, 40, 24, 4, 2, parameters={"activation": "gelu"}),
        _case("tanh's gelu", 11, 40, 24, 4, 2, parameters={"activation": "gelu_tanh"}),
        _case("interleaved", 11, 40, 24, 4, 2, parameters={"halves": "interleaved"}),
        _case(
            "interleaved, odd sizes, gelu", 17, 35, 19, 3, 2, parameters={"halves": "interleaved", "activation": "gelu"}
        ),
        _case("no tokens", 0, 24, 16, 4, 2),
        _case("no choices", 5, 24, 16, 4, 0),
        _case("nothing in between", 5, 24, 0, 4, 2),
        _case("no columns", 5, 0, 16, 4, 2),
        _case(
            "sliced, transposed", 9, 40, 48, 3, 2, layouts={"x": "sliced", "w_in": "transposed", "w_out": "transposed"}
        ),
        _case(
            "transposed x",
            9,
            40,
            33,
            3,
            2,
            layouts={"x": "transposed", "weights": "transposed", "experts": "transposed"},
        ),
        _case("every second column", 9, 50, 24, 3, 2, layouts={"x": "stepped", "w_in": "stepped", "w_out": "stepped"}),
        _case(
            "expanded, stepped weights",
            9,
            24,
            40,
            3,
            2,
            layouts={"w_in": "expanded", "w_out": "sliced", "weights": "stepped", "experts": "stepped"},
        ),
        _case(
            "offset by one",
            9,
            32,
            64,
            3,
            2,
            layouts={"x": "offset", "w_in": "offset", "w_out": "offset", "weights": "offset"},
        ),
        _case("tiny magnitudes", 7, 40, 24, 3, 2, values="tiny", backward=False),
        _case("NaN, infinities, signed zeros", 13, 40, 24, 4, 2, values="special", backward=False),
        _case("zeros", 7, 40, 24, 3, 2, values="zeros"),
        _case("biases", 11, 40, 24, 4, 2, biases=True),
        _case("clamped gates", 11, 40, 24, 4, 2, parameters={"activation": "swiglu_oai"}),
        _case(
            "gpt-oss' gates and biases",
            9,
            40,
            24,
            3,
            2,
            parameters={"activation": "swiglu_oai", "halves": "interleaved"},
            biases=True,
        ),
        _case("mxfp4", 13, 64, 32, 4, 2, parameters={"format": "mxfp4"}),
        _case(
            "mxfp4 as gpt-oss has it, odd blocks",
            7,
            72,
            40,
            3,
            2,
            parameters={"format": "mxfp4", "activation": "swiglu_oai", "halves": "interleaved"},
            biases=True,
        ),
        _case("float8 rows, tanh's gelu", 5, 48, 32, 3, 2, parameters={"format": "row", "activation": "gelu_tanh"}),
        _case(
            "mxfp4, gelu, scales and matrices apart",
            9,
            96,
            64,
            3,
            2,
            parameters={"format": "mxfp4", "activation": "gelu"},
            layouts={"w_in": "transposed", "scale_in": "sliced", "w_out": "stepped", "scale_out": "transposed"},
        ),
        _case(
            "mxfp4, tanh's gelu, some experts are elsewhere",
            3,
            64,
            32,
            4,
            2,
            parameters={"format": "mxfp4", "activation": "gelu_tanh"},
            given={"experts": (0, -1, -1, -1, 3, 0)},
        ),
        _case(
            "float8 rows, clamped gates and biases",
            7,
            64,
            48,
            3,
            2,
            parameters={"format": "row", "activation": "swiglu_oai"},
            biases=True,
        ),
        _case("float8 rows", 13, 128, 48, 4, 2, parameters={"format": "row"}),
        _case(
            "float8 rows of odd sizes, interleaved, gelu",
            7,
            65,
            29,
            3,
            2,
            parameters={"format": "row", "halves": "interleaved", "activation": "gelu"},
        ),
        _case("float8 blocks", 13, 256, 160, 3, 2, parameters={"format": "block"}),
        _case("float8 blocks, interleaved", 9, 200, 136, 3, 2, parameters={"format": "block", "halves": "interleaved"}),
        _case(
            "float8, some experts are elsewhere",
            3,
            64,
            32,
            4,
            2,
            parameters={"format": "row"},
            given={"experts": (0, -1, -1, -1, 3, 0)},
        ),
        _case(
            "float8, scales apart",
            7,
            64,
            48,
            3,
            2,
            parameters={"format": "row"},
            layouts={"scale_x": "sliced", "scale_in": "stepped", "w_in": "transposed", "scale_out": "stepped"},
        ),
    ),
    tolerance=Tolerance(rule="plain", flushed="all"),
    grid=Grid(
        (
            _row(4096, 2048, 768, 128, 8, core=True),
            _row(8, 2048, 768, 128, 8, core=True),
            _row(64, 2048, 768, 128, 8),
            _row(512, 2048, 768, 128, 8),
            _row(4096, 4096, 14336, 8, 2),
            _row(16, 4096, 14336, 8, 2),
            _row(1024, 7168, 2048, 32, 8),
            _row(4096, 2048, 768, 128, 8, "row"),
            _row(4096, 2048, 768, 128, 8, "block"),
            _row(1024, 7168, 2048, 32, 8, "block"),
        ),
        _row(4, 64, 32, 4, 2),
        _drawn,
    ),
    cost=cost,
    host_reads=("experts",),
    in_graphs="call",
    source=(
        "Shazeer et al. 2017, Outrageously Large Neural Networks, arXiv 1701.06538; Mixtral, arXiv 2401.04088, 2.1;"
        " Gale et al. 2022, MegaBlocks, arXiv 2211.15841; vLLM's fused_experts"
    ),
)
