"""One policy file for machines that differ: what it decides for each, read before anything is deployed.

Needs torch and portakernel; no GPU. Prints::

    cpu:x86_64       rms_norm     torch.rms_norm_cpu     policy.yaml:3 prefers it
    nvidia:sm_90     rms_norm     triton.rms_norm        policy.yaml:12 uses it
    amd:gfx942       rms_norm     torch.rms_norm         policy.yaml:15 prefers it
    nvidia:sm_90     add          nothing                ...
    here, in this process: torch.rms_norm_cpu
    a mistake is an error: ...
"""
