"""``portakernel run``: one call of a kernel in the emulator."""
