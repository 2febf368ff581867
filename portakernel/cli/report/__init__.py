"""``portakernel report``: one page on a deployment, gathered from what other commands tell apart."""
