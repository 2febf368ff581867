"""Whether the Triton that is installed compiles Gluon for Hopper: asked of its compiler, with a small kernel."""

from __future__ import annotations

from functools import cache
from typing import Any

from portakernel.authoring import ReasonCode, Rejection
from portakernel.authoring.triton import is_interpreting

_OPTIONS = {"num_warps": 4, "maxnreg": 168, "enable_fp_fusion": True}


def check(D: int) -> Rejection | None:
    """Why the kernel for Hopper cannot be compiled, in the compiler's words; None where it can."""
    del D  # a check reads something
    if is_interpreting():
        return Rejection(ReasonCode.DRIVER, "Gluon, which it is written in, is compiled for GPUs, and not interpreted")
    return _compiled()


def check_latent(C: int) -> Rejection | None:
    """The same of the kernel for latent vectors."""
    return check(C)


def check_products(K: int) -> Rejection | None:
    """The same of the kernel for grouped products."""
    return check(K)


def check_mixture(H: int) -> Rejection | None:
    """The same of mixtures of experts, which multiply by it."""
    return check(H)


@cache
def _compiled() -> Rejection | None:
    import triton

    try:
        _compile()
    except Exception as error:  # noqa: BLE001 - the plugin border: whatever fails here is the answer
        words = str(error).strip() or "no message"
        text = f"Gluon of triton {triton.__version__} does not compile it: {type(error).__name__}: {words}"
        return Rejection(ReasonCode.PROBE_FAILED, text)
    return None


def _compile() -> Any:
    """A kernel with all that attention's kernel has of Gluon, compiled for sm_90."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from portakernel_plugins.triton.attention.hopper_sample import square

    block = [1, 1, 64, 64]
    described = f"tensordesc<bf16{block},{gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)!r}>"
    source = GluonASTSource(square, {"x": described, "y": described})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=_OPTIONS)
