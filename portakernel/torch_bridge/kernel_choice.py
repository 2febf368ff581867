"""The kernels that run where a call is differentiated or traced, chosen before torch's dispatcher goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.traceback import annotate

from portakernel.calling.arguments import Tensors
from portakernel.calling.attempts import Attempts
from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.key_layout import TRAINING, CallKind
from portakernel.calling.key_table import Placement
from portakernel.calling.launcher import plain_launcher
from portakernel.calling.observers import tell_blocks, tell_process
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.claims.request import Phase
from portakernel.deciding.kernel_argument import (
    BLOCK_MARK,
    GRAPH_MARK,
    SETTLED_MARK,
    STRICT_MARK,
    is_automatic,
    unmarked,
)
from portakernel.errors import FallbackWarning, PackagedCallWarning
from portakernel.host.call_site import callers_level
from portakernel.tensors.torch_internals import innermost_transform, is_packaging, outside_modes
from portakernel.torch_bridge.in_graph import CUSTOM_META, is_compiling, is_looked_ahead, recorded
from portakernel.words.symbols import left_to_the_run


class KernelChoice:
    """One op's choices above autograd."""

    def __init__(self, caller: OpCaller) -> None:
        self.caller = caller
        self.contract = caller.contract
        kernels = caller.dispatcher.registry.for_op(self.contract.op)
        self.kernels = [kernel.name for kernel in kernels]
        self.some_save_their_own = any(kernel.saves == "own" for kernel in kernels)
        self._launchers: dict[tuple[str, Phase], Callable[..., Any]] = {}

    def naming(self, kernel: str, backward: str = "") -> AbstractContextManager[Any]:
        """Within this context, the nodes that a graph records say whose they are.

        Those of forward name the kernel of backward too: AOTAutograd gives what they say to the nodes of backward.
        """
        said = f"{self.contract.op}: {self._said(kernel)}"
        return annotate({CUSTOM_META: f"{said}; backward: {self._said(backward)}" if backward else said})

    def _said(self, kernel: str) -> str:
        name = unmarked(kernel)
        known = self.caller.dispatcher.registry.kernels.get(name) if kernel.startswith(GRAPH_MARK) else None
        return f"{name}, {'call' if known is None else known.in_graphs.form}"

    def in_graph(self, phase: Phase, kernel: str, arguments: Sequence[Any]) -> Any:
        """What the kernel, named with its mark, makes of a launcher's arguments: nodes of the graph.

        None where it declines to be traced: then it is called, and may decline that too.
        """
        chosen = self.caller.dispatcher.registry.kernels[unmarked(kernel)]
        run = self._launchers.get((chosen.name, phase))
        if run is None:
            run = plain_launcher(self.contract, chosen, phase, self.caller.dispatcher)
            self._launchers[chosen.name, phase] = run
        try:
            return recorded(chosen, run, arguments)
        except CannotRun as error:
            text = f"{chosen.op}: {chosen.name} cannot stand in a compiled graph ({error}); the graph calls it"
            warnings.warn(text, FallbackWarning, stacklevel=callers_level())
            self._warn_of_packaged_call(chosen.name)
            return None

    def recorded(self, tensors: Tensors, values: Sequence[Any], kernel: str, *, traced: bool) -> Any:
        """The results of the chosen kernel, when it is one whose gradient PyTorch records; else None.

        One that declines the call at the last moment is passed over for such calls. Where values are to be looked at,
        or policy blocks followed, a graph holds the op, and not what such a kernel is made of: only the op's
        implementation can look. So where a size is left to the run (``form_of``). Inside a transform it has to have all
        derivatives, as what has a forward-mode one does.
        """
        if traced and (
            _some_are_left(tensors) or self._looks_as_it_runs(kernel) or self._stays_a_node(tensors, values, kernel)
        ):
            return None
        placement, attempts = self._placed(TRAINING, tensors, values, kernel, traced=traced), None
        while placement.kernel.saves == "autograd":
            if innermost_transform() is not None and not placement.kernel.serves(Phase.FORWARD_AD):
                return None
            try:
                with self.naming(GRAPH_MARK + placement.kernel.name) if traced else nullcontext():
                    results = placement.launch(*tensors, *values)
            except CannotRun as error:
                # a traced graph and a stream capture are no calls that others are like
                if traced or error.rejection.code is ReasonCode.NOT_CAPTURABLE:
                    return None
                attempts = attempts or self.attempts(TRAINING, tensors, values, kernel, placement)
                attempts.decline(placement, error.rejection)
                placement = attempts.placed()
            else:
                if not traced:
                    tell_process(self.contract, tensors, values, phase=Phase.TRAINING)
                    tell_blocks(self.contract, tensors, values, phase=Phase.TRAINING)
                return self.caller.completed(results, values, tensors[0])
        return None

    def _stays_a_node(self, tensors: Tensors, values: Sequence[Any], kernel: str) -> bool:
        """Whether a graph that is no compiled one, and may run elsewhere, holds the op: a kernel serves it."""
        if self._has_forms(Phase.TRAINING, tensors, kernel):
            return False
        self.caller.arguments.check(tensors, values)
        kind = CallKind(Phase.TRAINING, below_autograd=True)
        request = replace(self.caller.request(kind, tensors, values), traced=True)
        dispatcher = self.caller.dispatcher
        with dispatcher.without_contexts(), outside_modes():
            chosen = dispatcher.decide(request, self.caller.policy(kernel)).chosen
        return chosen is not None and not chosen.is_reference

    def attempts(
        self, kind: CallKind, tensors: Tensors, values: Sequence[Any], kernel: str, placement: Placement
    ) -> Attempts:
        """The way on from ``placement``."""
        policy = self.caller.policy(kernel)
        key = self.caller.key(kind, tensors, values, policy)
        return Attempts(self.caller, kind, tensors, values, policy, key, placement)

    def _placed(
        self,
        kind: CallKind,
        tensors: Tensors,
        values: Sequence[Any],
        kernel: str,
        *,
        traced: bool,
        dissolved: bool = False,
    ) -> Placement:
        """The placement to run: for a traced graph by the process's policy, because a graph outlives a context."""
        self.caller.arguments.check(tensors, values)
        if not traced:
            return self.caller.placed(kind, tensors, values, self.caller.policy(kernel))
        request = replace(self.caller.request(kind, tensors, values), traced=True)
        if self._has_forms(kind.phase, tensors, kernel):
            request = replace(request, compiled=True)
            kernel = "" if is_automatic(kernel) else kernel  # chosen for a graph of calls, before this one was made
        with self.caller.dispatcher.without_contexts():
            return self.caller.place(request, self.caller.policy(kernel), dissolved=dissolved)

    def _will_dissolve(self, tensors: Tensors, values: Sequence[Any], kernel: str) -> bool:
        """Whether the graph that Dynamo prepares will dissolve the call's forward."""
        dispatcher = self.caller.dispatcher
        given = [tensor for tensor in tensors if tensor is not None]
        if dispatcher.routes.plan is None or self._looks_as_it_runs(kernel) or not is_looked_ahead(given):
            return False
        request = replace(self.caller.request(TRAINING, tensors, values), traced=True, compiled=True)
        with dispatcher.without_contexts(), outside_modes():
            return dispatcher.decide(request, self.caller.policy(kernel)).form in ("inline", "kernel")

    def _looks_as_it_runs(self, kernel: str) -> bool:
        """Whether the graph that is traced holds calls alone: those look at values, and follow policy blocks."""
        return self.caller.checks_values or kernel.endswith(BLOCK_MARK)

    def _has_forms(self, phase: Phase, tensors: Tensors, kernel: str) -> bool:
        """Whether kernels have forms in the graph that is traced; where they have none, each is a call."""
        if self._looks_as_it_runs(kernel):
            return False
        if phase is not Phase.INFERENCE and self.contract.gradient == "none":  # its refusal is that of the op's node
            return False
        return innermost_transform() is None and is_compiling([t for t in tensors if t is not None])

    def name(
        self,
        phase: Phase,
        tensors: Tensors,
        values: Sequence[Any],
        kernel: str,
        *,
        traced: bool,
        saved_by: str | None = None,
        dissolved: bool = False,
    ) -> str:
        """The kernel for ``phase`` as a torch op's argument names it; marked where it is to stand in the graph.

        ``dissolved``: it is a backward, of a forward that the graph dissolves. No plan speaks of such a call.
        """
        below = phase is Phase.TRAINING and self.caller.some_are_recorded
        unpaired = phase is Phase.TRAINING and self.some_save_their_own and self._leaves_open(tensors, kernel, traced)
        kind = CallKind(phase, saved_by=saved_by, below_autograd=below, unpaired=unpaired)
        if traced and phase is not Phase.INFERENCE:
            dissolved = dissolved or self._will_dissolve(tensors, values, kernel)
        placement = self._placed(kind, tensors, values, kernel, traced=traced, dissolved=dissolved)
        if placement.decision.form in ("inline", "kernel"):
            return GRAPH_MARK + placement.kernel.name
        if traced:
            self._warn_of_packaged_call(placement.kernel.name)
        if phase is Phase.TRAINING and not unpaired:
            return self.called(placement.kernel.name, strict=kernel.startswith(STRICT_MARK))
        asked_for = phase is Phase.INFERENCE and kernel.startswith(STRICT_MARK)
        return (STRICT_MARK if asked_for else SETTLED_MARK if dissolved else "") + placement.kernel.name

    def _leaves_open(self, tensors: Tensors, kernel: str, traced: bool) -> bool:
        """Whether who is called is chosen when the graph runs, for forward and backward apart.

        By a policy block, or by the plan's bounds on sizes that only the run can tell.
        """
        planned = traced and self.caller.dispatcher.routes.plan is not None and not kernel.startswith(STRICT_MARK)
        return kernel.endswith(BLOCK_MARK) or (planned and _some_are_left(tensors))

    def called(self, kernel: str, *, strict: bool = False) -> str:
        """The name by which the ``_forward`` part of the op calls ``kernel``, marked or not, and no other in its place.

        Where some kernel saves in its own way it is strict: backward is chosen to read what that one saves.
        """
        return (STRICT_MARK if strict or self.some_save_their_own else "") + unmarked(kernel)

    def unpaired(self, kernel: str) -> bool:
        """Whether the ``_forward`` part of the op, with such a name, leaves open which kernel runs backward."""
        return self.some_save_their_own and not kernel.startswith(STRICT_MARK)

    def _warn_of_packaged_call(self, kernel: str) -> None:
        """Says so, where AOTInductor compiles the graph that calls ``kernel``."""
        if not is_packaging():
            return
        op = self.contract.op
        text = f"this package calls {op} by {kernel}, and so loads only where portakernel was imported and"
        text += f" torch.ops.portakernel.{op} looked up; `portakernel explain {op} --compiled` says why it is a call"
        warnings.warn(text, PackagedCallWarning, stacklevel=callers_level())

    def backward(self, tensors: Tensors, values: Sequence[Any], kernel: str, traced: bool) -> str:
        """The backward kernel's name where it has to be chosen now, else an empty one.

        Backward may run in another thread, which does not see this one's context; a traced graph names its kernels; and
        what a kernel saves in its own way no other can read.
        """
        in_context = kernel.startswith(STRICT_MARK) or self.caller.dispatcher.context_layers.get()
        if self.contract.gradient != "kernel" or not (traced or in_context or self.some_save_their_own):
            return ""
        forward = ""
        if traced or self.some_save_their_own:
            forward = self.name(Phase.TRAINING, tensors, values, kernel, traced=traced)
        return self.name(
            Phase.BACKWARD, tensors, values, kernel,
            traced=traced, saved_by=self.own_saver(forward), dissolved=forward.startswith(GRAPH_MARK),
        )  # fmt: skip

    def mark(self, kernel: str) -> Tensor:
        """A tensor to keep beside the saved ones, which says which kernel saved them."""
        with outside_modes(), torch.inference_mode(False):  # autograd keeps none of inference mode's tensors
            return torch.tensor(self.kernels.index(kernel), device="cpu")

    def own_saver(self, kernel: str) -> str | None:
        """``kernel``'s full name, when it saves in its own way."""
        kernel = unmarked(kernel)
        known = self.caller.dispatcher.registry.kernels.get(kernel)
        return kernel if known is not None and known.saves == "own" else None


def _some_are_left(tensors: Tensors) -> bool:
    """Whether some sizes are left to the graph's run."""
    return any(left_to_the_run(size) for tensor in tensors if tensor is not None for size in tensor.shape)
