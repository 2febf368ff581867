"""What a deployment looks like: its devices, what serves its workload and why, and what would help most.

``content`` is the report as data, ``losses`` what a slower kernel costs by records, ``improvements`` what would help,
most first, ``page`` the report as one HTML page. Who gathers the data is the command (``portakernel.cli.report``).
"""
