"""What authors ask of kernels: are the claims true, how fast are they, do they compile; and what makes new packages.

It stands on ``portakernel``, which never imports it: a process that calls ops loads none of this. ``portakernel.cli``
names the modules of its commands as text.
"""
