"""One rank: ``main.py RANK WORLD FOLDER DEVICE PART``; rank r writes what it found to ``FOLDER/r.json``."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    rank, world, folder, device, part = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5]
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(str(folder / "store"), world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=300),
    )
    shape = (2, 2) if world == 4 else (world,)
    mesh = init_device_mesh(device, shape, mesh_dim_names=("outer", "inner") if world == 4 else ("only",))
    found = importlib.import_module(part).records(mesh)
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
