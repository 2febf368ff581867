"""A plugin in one file: a kernel, what it can serve, how it is found; then asked for by name, and refused by its claim.

Prints, on a CPU::

    nobody named it: torch.rms_norm_cpu serves
    PORTAKERNEL_PREFER=tiny, or a block: tiny.rms_norm serves, context prefers it
    at most ... from float64
    rows of 4096: torch.rms_norm_cpu; tiny.rms_norm needs N <= 1024; this is 4096
"""

import sys
import tempfile
from pathlib import Path

import torch

import portakernel

MANIFEST = """\
schema_version: 1
plugin_api: 2
plugin: tiny
kernels:
  - op: rms_norm
    entry: tiny_kernels:rms_norm
    targets: {cpu: any, nvidia: any, amd: any}
    dtypes: {x: [float32], weight: [x]}
    limits: {N: {max: 1024}}
"""


def rms_norm(x, weight, *, eps, out=None):  # tensors by position, values by name; the result in new memory, or in out
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return y.contiguous() if out is None else out.copy_(y)


def install(site):  # what pip makes of a package; `portakernel new plugin tiny` writes one, with its tests
    texts = {
        "tiny_kernels/__init__.py": Path(__file__).read_text(encoding="utf-8"),
        "tiny_kernels/plugin.yaml": MANIFEST,
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/entry_points.txt": "[portakernel]\ntiny = tiny_kernels\n",
    }
    for name, text in texts.items():
        Path(site, name).parent.mkdir(exist_ok=True)
        Path(site, name).write_text(text, encoding="utf-8")
    sys.path.insert(0, site)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as site:
        install(site)
        x, weight = torch.randn(4, 512), torch.randn(512)
        print(f"nobody named it: {portakernel.explain('rms_norm', x, weight).chosen.name} serves")
        with portakernel.policy(prefer="tiny"):
            named, wide = (portakernel.explain("rms_norm", torch.ones(4, n), torch.ones(n)) for n in (512, 4096))
            y = portakernel.ops.rms_norm(x, weight)
        print(f"PORTAKERNEL_PREFER=tiny, or a block: {named.chosen.name} serves, {named.why}")
        print(f"at most {(y - rms_norm(x.double(), weight.double(), eps=1e-6)).abs().max():.1e} from float64")
        print(f"rows of 4096: {wide.chosen.name}; tiny.rms_norm {wide.candidate('tiny.rms_norm').rejections[0].text}")
