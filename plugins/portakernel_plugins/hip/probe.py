"""Whether these kernels work on a device of this machine: compiler, CuPy, driver, and one addition, its sum checked."""

from __future__ import annotations

from contextlib import nullcontext

from portakernel.authoring import CannotRun, Device, ReasonCode, Rejection


def ready(device: Device) -> Rejection | None:
    """Why HIP kernels cannot be used on ``device``, which is in this machine. Never raises."""
    try:
        return _tiny_launch(device)
    except CannotRun as error:
        return error.rejection
    except Exception as error:  # noqa: BLE001 - the plugin border: whatever fails here is the answer
        first_line = str(error).strip().partition("\n")[0] or "no message"
        text = f"a tiny HIP kernel failed on {device.target}: {type(error).__name__}: {first_line}; check that the"
        return Rejection(ReasonCode.PROBE_FAILED, f"{text} versions of driver, torch and CuPy belong together")


def _tiny_launch(device: Device) -> Rejection | None:
    """One small addition on the device, compared with what it must give."""
    import torch

    from portakernel_plugins.hip.add import add

    if device.torch_device is None:
        return Rejection(ReasonCode.DRIVER, f"torch does not reach {device.target}: {device.note}")
    where = torch.device(device.torch_device)
    with torch.accelerator.device_index(where.index) if where.type != "cpu" else nullcontext():
        x = torch.arange(16, dtype=torch.float32, device=where)
        if torch.equal(add(x, x).cpu(), 2 * x.cpu()):
            return None
    text = f"a tiny HIP kernel ran on {device.torch_device} and gave wrong numbers; check the versions of driver and"
    return Rejection(ReasonCode.PROBE_FAILED, f"{text} compiler")
