"""The backends that come with portakernel: one folder per way to reach a vendor's hardware."""
