"""The requests of calls in words, of each phase that they have."""

from __future__ import annotations

from portakernel.claims.request import Phase, Request
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.warming.outcome import Call
from portakernel.words.target import Device, Target


def requests_of(call: Call, target: Target, device: Device | None = None) -> list[Request]:
    """What a call asks for on ``target``: of one for training, forward and, where kernels have a part in it, backward.

    Backward reads tensors that stand for those that it is not given: outputs, which lie plainly.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: the words make no call of the op.
    """
    described = contract(call.op)
    phases = [Phase.FORWARD_AD if call.forward_ad and described.gradient != "none" else Phase.INFERENCE]
    if call.training and described.gradient != "none":
        phases = [Phase.TRAINING, *([Phase.BACKWARD] if described.gradient == "kernel" else [])]
    facts = call.memory.facts
    kept = {name: value for name, value in facts.items() if name.partition(".")[0] not in described.stands_for}
    return [
        ask(
            described,
            target,
            dtypes=call.dtype,
            shapes=call.shape,
            formats=call.format,
            values=call.parameters,
            phase=phase,
            facts=kept if phase is Phase.BACKWARD else facts,
            device=device,
        )
        for phase in phases
    ]
