"""What each reason code means, when a kernel gets it, and what to do: the one table behind advice and documentation.

``python -m portakernel explain`` gives the remedy of a rejection that it prints; the site has a page for each code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from portakernel.claims.capability import ReasonCode


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason code for people.

    ``meaning`` is a sentence, ``when`` says what makes a kernel get it. ``remedy`` is the one sentence of advice for a
    rejection, over ``{op}``, ``{kernel}``, ``{distribution}``, ``{text}``, ``{parameter}``, ``{argument}`` and
    ``{install}``; empty where nothing that a caller or an operator can do would make the kernel serve, and ``instead``
    says what is left. ``text`` and ``parameter`` are a rejection's that ``kernel`` is given, where kernels get the code
    at all; ``command``, where any machine can answer, are the arguments of an `explain` that shows it.
    """

    meaning: str
    when: str
    remedy: str
    kernel: str = ""
    text: str = ""
    parameter: str | None = None
    command: str = ""
    instead: str = ""


_PREFER = "prefer it: `--prefer {kernel}`, or portakernel.policy(prefer={kernel!r})"
_TRACEBACK = "mend what it names; `portakernel doctor --verbose` shows the traceback"
_REQUIRE = "do without require={parameter!r}"
_ELSEWHERE = "`portakernel matrix --op {op}` shows where the op is served, and by which kernels."

REASONS: Mapping[ReasonCode, Reason] = {
    ReasonCode.NOT_INSTALLED: Reason(
        "A module that the kernel needs is not installed, or not in a version that it works with.",
        "The plugin's manifest lists modules and versions under `requires`; they are looked up without being imported.",
        "{install}",
        "triton.rms_norm",
        "needs triton >=3.6; it is not installed",
        "triton",
    ),
    ReasonCode.IMPORT_FAILED: Reason(
        "The kernel's own module cannot be imported.",
        "What it needs is installed, but importing it raised an exception: a broken installation, or a plugin's bug.",
        _TRACEBACK,
        "liger.rms_norm",
        "importing portakernel_plugins.liger.norms:rms_norm raised ImportError: libcuda.so.1: cannot open shared object"
        " file; see `portakernel doctor`",
    ),
    ReasonCode.PROBE_FAILED: Reason(
        "The kernel's plugin tried itself on this device, and failed.",
        "The manifest's `ready` function looks at a device once, mostly by a tiny launch; it found it unusable, or"
        " raised.",
        _TRACEBACK,
        "triton.rms_norm",
        "a tiny Triton kernel ran on cuda:0 and gave wrong numbers; check the driver's and Triton's versions",
    ),
    ReasonCode.API_VERSION: Reason(
        "The plugin is written for another version of portakernel's plugin interface.",
        "`plugin_api` in the manifest names none that this portakernel has (`portakernel.PLUGIN_API`). Such a"
        " package is"
        " refused whole, and shown by `portakernel doctor`; its kernels are not there to be asked.",
        "install versions of {distribution} and portakernel that go together",
    ),
    ReasonCode.DISABLED: Reason(
        "The kernel is switched off.",
        "Its manifest says `disabled` with the reason, or `PORTAKERNEL_DISABLE` names it or its plugin.",
        "take it out of PORTAKERNEL_DISABLE",
        "triton.rms_norm",
        "PORTAKERNEL_DISABLE names triton",
        instead="What a manifest switches off stays off until its author switches it on.",
    ),
    ReasonCode.NEEDS_BUILD: Reason(
        "The kernel has to be built before it can run, and was not built for this call.",
        "Kernels with `build` in their manifest are compiled ahead for sizes, dtypes and values, never inside a call.",
        'build it ahead, with portakernel.warmup("{op}", ...)',
        "inductor.rms_norm",
        'is not built for these sizes, dtypes and values; portakernel.warmup("rms_norm", dtype=\'bfloat16\','
        " shape={'x': (4096, 8192)}) builds it there",
        command="rms_norm --target nvidia:sm_90 --dtype bfloat16 --shape x=4096x8192",
    ),
    ReasonCode.DENIED_BY_POLICY: Reason(
        "Somebody's policy forbids it.",
        "An argument, a `with portakernel.policy(...)`, the environment or a policy file denies it, requires another"
        " kernel, or forbids the reference. The text says which, with file and line.",
        "take back the wish that stands against it ({text})",
        "triton.rms_norm",
        "denied by command line",
        command="rms_norm --target nvidia:sm_90 --dtype bfloat16 --deny triton",
    ),
    ReasonCode.NOT_ALLOWED: Reason(
        "A list of plugins says which may serve, and the kernel's is not among them.",
        "`PORTAKERNEL_PLUGINS`, or `plugins` in a policy file: nothing else is imported. Several lists hold together:"
        " a plugin has to be on each. The references remain, unless a policy forbids them.",
        "add its plugin to the list that leaves it out ({text})",
        "triton.rms_norm",
        "PORTAKERNEL_PLUGINS allows only torch",
        instead="Who keeps the list decides; the kernels on it serve.",
    ),
    ReasonCode.NOT_IN_PLAN: Reason(
        "A plan that is to cover every call does not cover this one.",
        "The plan says `lock: everything` (docs/plans.md): a call that none of its entries is for is an error, not a"
        " surprise.",
        "add an entry: `portakernel plan lock --calls FILE` completes the plan for recorded calls ({text})",
        "triton.rms_norm",
        "plan.yaml is locked, and has no entry for such calls",
        instead="A plan with `lock: listed` leaves what it does not list to measurements and priorities.",
    ),
    ReasonCode.VENDOR: Reason(
        "The kernel is for another vendor's hardware.",
        "`targets` in the manifest does not name the vendor of the device.",
        "",
        "torch.rms_norm_mps",
        "serves apple, not nvidia",
        "target",
        "rms_norm --target nvidia:sm_90 --dtype bfloat16",
        _ELSEWHERE,
    ),
    ReasonCode.ARCH: Reason(
        "The kernel is for other architectures of the same vendor.",
        "`targets` names the vendor, but not this architecture: the hardware lacks an instruction that the kernel is"
        " made of, or the kernel was built for others.",
        "",
        "torch.scaled_mm",
        "row: needs sm_89+; this is sm_80",
        "target",
        "scaled_mm --target nvidia:sm_80 --dtype a=float8_e4m3fn --dtype b=float8_e4m3fn",
        _ELSEWHERE,
    ),
    ReasonCode.DRIVER: Reason(
        "The device's driver is missing, too old, or does not reach the device.",
        "A plugin's probe asked the driver, or torch finds no way to a device that the system has.",
        "update the driver",
        "triton.rms_norm",
        "torch does not reach nvidia:sm_90: this torch was built without CUDA",
    ),
    ReasonCode.MISSING_LIBRARY: Reason(
        "A library beside Python's modules is missing: cuDNN, headers, a driver's part.",
        "A probe or the kernel itself looked for it where it is installed by its vendor's documentation.",
        "install the library that it names",
        "torch.attention_cudnn",
        "needs cuDNN, which PyTorch does not find",
        "cudnn",
    ),
    ReasonCode.MISSING_TOOLCHAIN: Reason(
        "A compiler is missing, or too old for the architecture.",
        "Kernels that are compiled on first use need theirs here: a C compiler for Triton's launchers, clang or hipcc"
        " for HIP C++, nvcc for CUTLASS.",
        "install the tool that it names",
        "triton.rms_norm",
        "Triton compiles launchers with a host C compiler and finds none; install gcc or clang, or set CC to one",
    ),
    ReasonCode.DTYPE: Reason(
        "The kernel does not take an argument's dtype, or not together with the others'.",
        "`dtypes` in the manifest lists what each argument may be; another argument's name means: the same as that"
        " one.",
        "give {parameter} in a dtype that it takes",
        "conch.rms_norm",
        "x needs float32; this is bfloat16",
        "x",
        "rms_norm --target amd:gfx942 --dtype bfloat16",
    ),
    ReasonCode.SCALE_FORMAT: Reason(
        "The kernel does not take the scales' format of a quantised argument.",
        "`formats` in the manifest lists them by argument; they are explicit, because shapes do not determine them.",
        "quantise {parameter} in a scale format that it takes",
        "torch.scaled_mm",
        "tensor: a takes tensor; this is mxfp8",
        "a",
        "scaled_mm --target nvidia:sm_90 --format mxfp8",
    ),
    ReasonCode.LAYOUT: Reason(
        "A tensor does not lie in memory as the kernel needs it, or the kernel cannot write where it shall.",
        "`limits` in the manifest bounds facts of the layout: `contiguous`, `flat_rows`, `stride_last`. Writing over an"
        " input is a property, `inplace`, that not every kernel has.",
        "pass {argument}.contiguous()",
        "triton.add",
        "needs x.contiguous = true; this is false",
        "x.contiguous",
    ),
    ReasonCode.ALIGNMENT: Reason(
        "A tensor's address is not divided by as many bytes as the kernel's accesses need.",
        "`limits` in the manifest bounds `ARGUMENT.alignment`: vector loads and bulk copies take aligned addresses"
        " only."
        " A view that begins inside another tensor may lie at an odd one.",
        "pass {argument} at an aligned address, as a fresh tensor or {argument}.clone() is",
        "quack.rms_norm",
        "needs x.alignment >= 16; this is 2",
        "x.alignment",
    ),
    ReasonCode.LIMIT: Reason(
        "A size is outside what the kernel takes.",
        "`limits` in the manifest bounds the contract's dimensions; a plugin's `check` may bound what they make"
        " together.",
        "use another kernel for such sizes",
        "liger.rms_norm",
        "needs N >= 1 and <= 65536; this is 131072",
        "N",
        "rms_norm --target nvidia:sm_90 --dtype bfloat16 --shape x=16x131072",
    ),
    ReasonCode.FEATURE: Reason(
        "The call asks for something that the kernel cannot do: an optional argument, or a value of one.",
        "`features` lists the optional arguments that a kernel honours, `values` those keyword values that it takes. An"
        " argument is never dropped.",
        "do without {parameter}",
        "torch.rms_norm",
        "does not serve weight_offset=1.0",
        "weight_offset",
        "rms_norm --target nvidia:sm_90 --dtype bfloat16 --set weight_offset=1.0",
    ),
    ReasonCode.REQUIRES_GRAD: Reason(
        "A gradient is asked for, and the kernel's forward keeps nothing to compute it from.",
        "`saves` in the manifest: what forward keeps of the tensors that the contract names. Forward-mode derivatives"
        " need a kernel that has them.",
        "call it under torch.no_grad() where no gradient is needed",
        "flashinfer.rms_norm",
        "does not save rstd for backward",
        "requires_grad",
        "rms_norm --target nvidia:sm_90 --dtype bfloat16 --phase training",
    ),
    ReasonCode.NO_BACKWARD: Reason(
        "The kernel computes the op, but not its gradient.",
        "Backward is chosen for itself, among the kernels with `backward` in their manifest; the others get this.",
        "",
        "flashinfer.rms_norm",
        "has no backward kernel",
        "requires_grad",
        "rms_norm --target nvidia:sm_90 --dtype bfloat16 --phase backward",
        "Nothing is to be done: another kernel's backward, or the reference's, takes what this forward saved.",
    ),
    ReasonCode.BACKWARD_MISMATCH: Reason(
        "What forward saved is another kernel's own, or its gradient PyTorch's.",
        "Kernels that save what the contract names go with each other; one that saves tensors of its own (`saves: own`)"
        " goes only with its own backward; one of torch operators (`saves: autograd`) calls none.",
        "run forward with {kernel} too, and ask with `--saved-by {kernel}`",
        "triton.linear_cross_entropy",
        "cannot read what liger.linear_cross_entropy saved",
        "requires_grad",
        "linear_cross_entropy --target nvidia:sm_90 --phase backward --saved-by liger.linear_cross_entropy",
    ),
    ReasonCode.NOT_DETERMINISTIC: Reason(
        "Equal results from run to run are required, and the kernel does not promise them.",
        "`require=\"deterministic\"` in a policy, and no `deterministic` among the kernel's `properties`.",
        _REQUIRE,
        "torch.embedding_bag",
        "does not promise equal results from run to run",
        "deterministic",
    ),
    ReasonCode.NOT_BATCH_INVARIANT: Reason(
        "A row's result must not depend on the other rows, and the kernel does not promise that.",
        "`require=\"batch_invariant\"` in a policy, and no `batch_invariant` among the kernel's `properties`.",
        _REQUIRE,
        "liger.rms_norm",
        "does not promise a row's result independent of the other rows",
        "batch_invariant",
    ),
    ReasonCode.NOT_CAPTURABLE: Reason(
        "A stream is being captured, or shall be, and the kernel cannot be launched then.",
        "`require=\"graph_capture\"`, or a capture under way: no `graph_capture` among its `properties`, or it would"
        " have"
        " to compile, tune or synchronise first.",
        _REQUIRE,
        "liger.rms_norm",
        "cannot be launched while a stream is captured",
        "graph_capture",
        instead='What only has to be compiled first is ready after portakernel.warmup("{op}", ...).',
    ),
    ReasonCode.WORKSPACE: Reason(
        "The kernel needs more memory to work in than there is.",
        "Found when the call is at hand, before anything is launched.",
        "free device memory, or split the call",
        "torch.attention_math",
        "holds all scores at once: 137438953472 of them, more than 2147483648",
        "S",
    ),
    ReasonCode.SHARED_MEMORY: Reason(
        "The device's multiprocessors have less shared memory than the kernel needs for these sizes.",
        "Found when the kernel is compiled or loaded for the call, before a launch; remembered for calls like it.",
        "ask for smaller sizes; this device's shared memory is less than it needs",
        "triton.linear_cross_entropy",
        "compiled, _forward needs 131072 bytes of shared memory; the device has 101376",
    ),
    ReasonCode.CANNOT_RUN: Reason(
        "The kernel found out by itself that it cannot serve this call.",
        "It raised `CannotRun` before it launched anything, or its `check` refused; said where no other code fits.",
        "change what its reason names",
        "hip.rms_norm",
        "clang crashed on norms.hip for amd:gfx942 (SIGSEGV); use another version of it",
    ),
    ReasonCode.SHADOW_MISMATCH: Reason(
        "A result of the kernel was held against the reference while it served, and was wrong.",
        "A policy file, or `portakernel.shadow.configure`, asks for shadow verification with `on_mismatch: demote`"
        " (docs/shadow.md): the kernel serves no call of that kind any more, in this process, and in others where"
        " `PORTAKERNEL_TUNING_DIR` names a store.",
        "report it with what docs/shadow.md has written to a folder; to have it serve again start the process anew",
        "triton.rms_norm",
        "shadow verification found y[3, 17] 1.9 units off, with 0.51 allowed",
    ),
    ReasonCode.ATTACHED_TARGET: Reason(
        "The kernel runs on a second device that shares the tensor's memory, and is asked only where it is named.",
        "A backend with `attach: true` adds targets to a torch device, as OpenCL devices to the CPU. Nobody's calls go"
        " there by themselves.",
        _PREFER,
        "opencl.rms_norm",
        "runs on opencl:pocl, attached to cpu:x86_64: only when a policy names it",
        "target",
    ),
    ReasonCode.THIRD_PARTY: Reason(
        "Nothing speaks against the kernel, but it is a third party's, and nobody has named it.",
        "Installing a package changes nothing by itself: its kernels stand after the reference until a policy names"
        " them, and serve unnamed only where nothing else can. Whether a package is portakernel's own is decided by"
        " where its folder lies, not by what it calls itself.",
        _PREFER,
        "opencl.rms_norm",
        "a third party's kernel waits until a policy names it (prefer: opencl, or PORTAKERNEL_PREFER=opencl);"
        " reference.rms_norm serves",
    ),
    ReasonCode.LOWER_PRIORITY: Reason(
        "Nothing speaks against the kernel: another one goes first.",
        "A policy that names the other, or a higher `priority`: the text says which.",
        _PREFER,
        "torch.rms_norm",
        "priority 40 is below 60 of triton.rms_norm",
        None,
        "rms_norm --target nvidia:sm_90 --dtype bfloat16",
    ),
}  # fmt: skip
