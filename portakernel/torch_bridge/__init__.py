"""Where ops meet PyTorch: devices, registration in ``torch.ops.portakernel``, autograd, vmap, autocast."""
