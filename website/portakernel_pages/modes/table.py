"""The table of modes: each with its name, what is done in it, and the page that shows every op's outcome."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from portakernel_pages.modes import compilation, contexts, differentiation, registration, transforms
from portakernel_pages.modes.outcome import NothingToDo, Outcome
from portakernel_pages.modes.subject import Subject


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to use an op in PyTorch; ``run`` gives an op's outcome, ``text`` says what it does and what to know."""

    family: str
    name: str
    run: Callable[[str], Outcome]
    text: str

    def outcome(self, op: str) -> Outcome:
        """What becomes of ``op``; nothing of one that has nothing to derive by, where that is what the mode does."""
        return NothingToDo() if self.name in _DERIVING and not _floats(op) else self.run(op)


# Modes that are about gradients.
_DERIVING = frozenset(
    {
        "compile, backward",
        "compile, `func.grad`",
        "gradcheck",
        "gradients",
        "double backward",
        "forward AD",
        "forward over reverse",
        "vmap of grad",
        "func.grad",
        "func.vjp",
        "func.jacrev",
        "functional_call",
        "checkpoint, reentrant",
        "checkpoint",
    }
)


def _floats(op: str) -> bool:
    """Whether any argument is of numbers that one could differentiate by."""
    return any(tensor is not None and tensor.dtype.is_floating_point for tensor in Subject(op).tensors)


MODES: tuple[Mode, ...] = (
    Mode(
        "Registration and compilation",
        "opcheck",
        registration.check_registration,
        "`torch.library.opcheck` of the op, of `<op>_forward` and of `<op>_backward`: schema and fake on every case of"
        " the contract; autograd registration and dynamic tracing, which cost a hundred times as much and depend on no"
        " numbers, on the smallest case and, for the two parts, on the one that passes most tensors. `test_schema` is"
        " left out for arguments in 8-bit floats, which torch's own comparison cannot multiply.",
    ),
    Mode(
        "Registration and compilation",
        "compile",
        compilation.compile_static,
        "`torch.compile(fullgraph=True, dynamic=False)`: one graph without a break, and the results of the contract.",
    ),
    Mode(
        "Registration and compilation",
        "compile, dynamic",
        compilation.compile_dynamic,
        "Three sizes run in one graph, with `dynamic=True` and with `torch._dynamo.mark_dynamic`. A graph holds guards"
        " where a kernel's claims ask something of a size (`M >= 32`, `N % 16 == 0`): a size on the other side of one"
        " compiles again, and another kernel may serve it. Sizes that only steer speed are no guards. A size that only"
        " the run can tell (of the rows that a mask picks) is not guarded: a claim that asks something of it counts as"
        " not met, unless it is sure, and the next kernel serves; that sizes go together, the graph checks as it runs.",
    ),
    Mode(
        "Registration and compilation",
        "compile, kernel named",
        compilation.compile_names_kernel,
        "The graph says what it runs: the kernel, in the form, that `explain(..., compiled=True)` says"
        " ([compile.md](compile.md)). Every node of the op has both in its `meta['custom']['portakernel']`.",
    ),
    Mode(
        "Registration and compilation",
        "compile, inline",
        compilation.compile_inline,
        'Results and gradients under `portakernel.set_policy(compiled="inline")`: each op that can be is torch'
        " operators in the graph. Those whose formula looks at values are calls.",
    ),
    Mode(
        "Registration and compilation",
        "compile, calls",
        compilation.compile_calls,
        'The same under `portakernel.set_policy(compiled="call")`: each op is one node, forward and backward.',
    ),
    Mode(
        "Registration and compilation",
        "compile, policy changed",
        compilation.compile_policy_change,
        "`portakernel.set_policy` between calls compiles exactly once more, the new kernel is in the new graph, and a"
        " return to the first policy compiles nothing. For `with portakernel.policy(…)` blocks around a compiled"
        " function it compiles once more, to calls, which follow every block.",
    ),
    Mode(
        "Registration and compilation",
        "compile, backward",
        compilation.compile_backward,
        "Forward and backward both compiled, with the gradients of the contract. torch's AOTAutograd supports no double"
        " backward through a compiled function, and says so.",
    ),
    Mode(
        "Registration and compilation",
        "compile, `func.grad`",
        compilation.compile_func_grad,
        "`torch.compile` of `torch.func.grad`: the transform is traced into the graph.",
    ),
    Mode(
        "Registration and compilation",
        "export",
        compilation.export,
        "`torch.export`, strict and not, and the exported program's results. The program leaves the choice to the"
        " process that it runs in, and to the policy of then, but where the call names a kernel (`kernel=`), which it"
        " keeps. `run_decompositions()` chooses, and names kernels as compilation does. What else is saved of a graph"
        " that `torch.compile` traced may hold a token (`@…`) in a kernel's place: where it runs under another policy"
        " or installation, the policy in force chooses, with a `StaleGraphWarning`.",
    ),
    Mode(
        "Registration and compilation",
        "export, open sizes",
        compilation.export_open,
        "`torch.export` with a `Dim` without bounds for each size that may differ from call to call: the program has no"
        " bound either, whatever kernels of other devices, or behind the chosen one, are limited to.",
    ),
    Mode(
        "Derivatives",
        "gradcheck",
        differentiation.gradcheck,
        "`torch.autograd.gradcheck` of the public op in float64. An op that has gradients takes its first argument in"
        " float64, the others as they follow it, and results that are else float32 are float64 then. The reference"
        " serves it, and by it are tested the formulas that every kernel is held to; kernels of plugins cannot claim"
        " float64. Such a call is a test: no warning says that the reference serves it.",
    ),
    Mode(
        "Derivatives",
        "gradients",
        differentiation.gradients_of_op,
        "The gradients that the serving kernels compute, against the formulas in float64, within the contract's"
        " tolerance. `portakernel check` does it for every kernel, case and dtype. An op without a gradient says so in"
        " backward, not in forward. So does an op of which one argument has none (`cos` of `rotary_embedding`,"
        " `alibi_slopes` of `attention`) where that argument requires one.",
    ),
    Mode(
        "Derivatives",
        "double backward",
        differentiation.double_backward,
        "Gradients of gradients, by `create_graph=True` and by nested `torch.func` transforms, against difference"
        " quotients in float64. Whichever kernels ran, the second derivative is PyTorch's own of the reference's"
        " backward:"
        " right, and not fast. `linear_act` refuses where its forward saved the preactivation (GELU and SiLU, with"
        " kernels whose gradient is not PyTorch's), because `bias` is not kept and the preactivation cannot be computed"
        " again. Permission to overwrite an argument in backward is not used with `create_graph=True`.",
    ),
    Mode(
        "Derivatives",
        "forward AD",
        differentiation.forward_derivative,
        "`torch.func.jvp` and `torch.autograd.forward_ad` duals. The reference computes results and tangents, whatever"
        " the policy prefers; `stats()` counts the phase `forward_ad`. Of results without a gradient (`lse`) there are"
        " tangents all the same.",
    ),
    Mode(
        "Derivatives",
        "forward over reverse",
        differentiation.forward_over_reverse,
        "`torch.func.jvp` of `torch.func.grad`, which is what `torch.func.hessian` is made of. As in forward AD the"
        " reference computes everything.",
    ),
    Mode(
        "Transforms",
        "vmap",
        transforms.vmap,
        "`torch.vmap` over all tensors and over the first alone. A batch is one more leading dimension where rows are"
        " independent, and one call for each element where they are not. Kernels are asked to train only where"
        " something is differentiated. An op that writes into its arguments refuses: a batch of them is written by as"
        " many calls.",
    ),
    Mode("Transforms", "vmap of grad", transforms.per_sample_gradients, "Gradients for each sample: `vmap(grad(…))`."),
    Mode("Transforms", "func.grad", transforms.func_grad, "`torch.func.grad` by every argument that has a gradient."),
    Mode(
        "Transforms",
        "func.vjp",
        transforms.func_vjp,
        "`torch.func.vjp`: the results, and drawn cotangents pulled back.",
    ),
    Mode("Transforms", "func.jacrev", transforms.func_jacrev, "`torch.func.jacrev`: vmap over backward."),
    Mode(
        "Transforms",
        "functional_call",
        transforms.functional_call,
        "`torch.func.functional_call` of a module with other parameters: their results and gradients, and none for the"
        " module's own.",
    ),
    Mode(
        "Contexts",
        "autocast",
        contexts.autocast,
        "`torch.autocast` in bfloat16. Each contract says what it does: matrix products and attention are cast to"
        " autocast's dtype, `add` promotes arguments of different dtypes, and the others keep theirs, since they"
        " compute"
        " in float32 anyhow.",
    ),
    Mode(
        "Contexts",
        "inference mode",
        contexts.inference_mode,
        "`torch.inference_mode`, on tensors from outside and inside.",
    ),
    Mode(
        "Contexts",
        "checkpoint, reentrant",
        contexts.checkpoint_reentrant,
        "`torch.utils.checkpoint(…, use_reentrant=True)`: forward runs again in backward.",
    ),
    Mode(
        "Contexts",
        "checkpoint",
        contexts.checkpoint_nonreentrant,
        "`torch.utils.checkpoint(…, use_reentrant=False)`. The second forward runs under the policy that holds where"
        " `backward()` is called (on accelerators in a thread that sees no `with` block at all): put"
        " `with portakernel.policy(…)` inside the checkpointed function, or use `portakernel.set_policy`. Where another"
        " kernel then runs the second time, results agree within the tolerance; where it saves something else than the"
        " first one did, backward raises `DerivativeError`, and torch's own check of what is saved may come first."
        " `add`"
        " needs nothing from forward, which does not run again.",
    ),
)


def page(outcomes: Mapping[str, Mapping[str, object]]) -> str:
    """The Markdown page of these outcomes, by mode and op; each kind of refusal is a numbered note."""
    notes: dict[str, int] = {}
    tables: list[str] = []
    for family in dict.fromkeys(mode.family for mode in MODES):
        modes = [mode for mode in MODES if mode.family == family]
        lines = ["| op | " + " | ".join(mode.name for mode in modes) + " |", "|---" * (len(modes) + 1) + "|"]
        for op in sorted(outcomes[modes[0].name]):
            cells = [_cell(str(outcomes[mode.name][op]), op, notes) for mode in modes]
            lines.append(f"| `{op}` | " + " | ".join(cells) + " |")
        tables.append(f"## {family}\n\n" + "\n".join(lines))
    told = "\n".join(f"{number}. {text}" for text, number in notes.items())
    paragraphs = [f"- **{mode.name}**: {mode.text}" for mode in MODES]
    parts = [_HEAD, *tables, f"## Refusals\n\n{told}", "## What each mode does", "\n".join(paragraphs), _TAIL]
    return "\n\n".join(_wrapped(part) for part in parts) + "\n"


def _wrapped(text: str) -> str:
    lines = (line if line.startswith("|") else _fill(line) for line in text.split("\n"))
    return "\n".join(lines)


def _fill(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cell(text: str, op: str, notes: dict[str, int]) -> str:
    if text in ("works", str(NothingToDo())):
        return text
    return f"refuses ({notes.setdefault(text.replace(op, _OP), len(notes) + 1)})"


# What stands for the op's name in notes.
_OP = "*op*"
_HEAD = """\
# Modes of PyTorch

What each op does in each mode of PyTorch, as observed on a CPU: it *works*, with the numbers of its contract, or it\
 *refuses* with an error that says so. There is no third outcome: wrong numbers, graph breaks and crashes fail the\
 tests; a dash is where an op has nothing to be differentiated by, or no size that may differ. Written by `make\
 modes` (`python -m portakernel_pages.modes --write docs/modes.md`); `tests/modes` runs every cell again and holds it\
 to this page. Each mode runs on the smallest ordinary case of the op's contract, in float32 where the op takes it,\
 with the kernels that the policy in force chooses here."""
_TAIL = """\
## Elsewhere

CUDA graphs and stream capture are no column, because this page is written on a CPU: a kernel that cannot be captured\
 is not chosen inside a capture, and where none can, the error names `portakernel.warmup`. DTensor and FSDP2 have a\
 page of their own: [sharding.md](sharding.md).

A saved program (`torch.export.load`, a pickled graph) finds its ops once torch and portakernel are imported, in either\
 order: the first op that is looked up in `torch.ops.portakernel` registers all, which takes most of a second. What\
 resolves ops in C++ (`torch.jit.load`, AOTInductor's packages) looks nothing up there: write\
 `torch.ops.portakernel.rms_norm` before, or any other op."""


def observed(ops: list[str], modes: tuple[Mode, ...] = MODES) -> dict[str, dict[str, Outcome]]:
    """The outcome of every mode for every op, by running them."""
    return {mode.name: {op: mode.outcome(op) for op in ops} for mode in modes}
