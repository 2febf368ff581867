"""A mismatch in the store of measurements, where one is named: other processes pass the kernel over, too."""

from __future__ import annotations

from portakernel.claims.request import Phase
from portakernel.config import Config
from portakernel.shadow.sample import Sample
from portakernel.tensors.units import units_of
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.place import own_root
from portakernel.tuning.served import write_wrong


def recorded(sample: Sample, detail: str) -> str:
    """Records that a kernel was wrong in the store that ``PORTAKERNEL_TUNING_DIR`` names; says where.

    Empty where none is named, or measurements are off; else the rest of a sentence.
    """
    config = Config.from_environment()
    if not config.tuning_dir or config.tuning == "off":
        return ""
    caller, kernel = sample.caller, sample.candidate.placement.kernel
    device = sample.candidate.placement.decision.request.device
    assert device is not None
    root = own_root(config.tuning_dir)
    request = caller.arguments.request(sample.tensors, sample.values, Phase.INFERENCE)
    kind = Kind.of(request, caller.dispatcher.registry.for_op(request.op))
    units, regime = units_of(device) or 0, Regime(config.tuning).on(request.target.vendor)
    key = Key(kind, str(request.target), units, regime, dict(request.dims))
    try:
        write_wrong(root, key, kernel, caller.contract, detail, device)
    except (OSError, ValueError) as error:
        return f"; that could not be recorded in {root} ({error})"
    return f"; recorded in {root}"
