"""``portakernel lint``: whether kernels do what they claim and refuse the rest, and who notices a wrong claim."""
