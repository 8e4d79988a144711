"""A real job of four ranks on Gloo (tp 2 × dp 2) that hangs; every rank writes its dump before any timeout.

Only the ranks import torch: the process of the tests forks for each folder of dumps, in half the time without it.
"""

import os
import pickle
import threading
import time

from tracekit.plain_pickle import loads_plain

CULPRIT = 3


def dump(rank, folder, ends):
    """The recorder's pickle with the members of the groups, which Gloo leaves out."""
    import torch
    import torch.distributed as dist

    world = dist.distributed_c10d._world
    content = loads_plain(torch._C._distributed_c10d._dump_fr_trace())
    config = {}
    for group, ranks in world.pg_group_ranks.items():
        if group not in world.pg_names:  # a group that this rank is not a member of
            continue
        name = world.pg_names[group]
        config[name] = {"name": name, "desc": group.group_desc, "ranks": str(sorted(ranks))}
    content["pg_config"] = config
    (folder / f"dump_{rank}.pkl").write_bytes(pickle.dumps(content))
    text = torch._C._distributed_c10d._dump_fr_trace_json()
    (ends / f"rank_{rank}.json").write_bytes(text if isinstance(text, bytes) else text.encode())


def main(rank, store, folder, kind, stall_s):
    """What one rank does, in a process of its own; all stand still long before `stall_s`."""
    import torch
    import torch.distributed as dist

    os.environ["TORCH_FR_BUFFER_SIZE"] = "200"
    ends = folder.parent / "json"
    ends.mkdir(exist_ok=True)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    tp = [dist.new_group(r, group_desc="TENSOR_MODEL_PARALLEL_GROUP") for r in ([0, 1], [2, 3])][rank // 2]
    dp = [dist.new_group(r, group_desc="DATA_PARALLEL_GROUP") for r in ([0, 2], [1, 3])][rank % 2]

    def work():
        for step in range(5):
            for layer in range(3):
                here = rank == CULPRIT and step == 4 and layer == 1
                if here and kind == "host_stall":
                    time.sleep(60)
                if here and kind == "crash":
                    os._exit(1)
                if here and kind == "skip":
                    continue
                size = 24 if here and kind == "wrong_size" else 16
                dist.all_reduce(torch.ones(size), group=tp)
                dist.broadcast(torch.ones(4), src=2 * (rank // 2), group=tp)
            dist.all_reduce(torch.ones(64), group=dp)
        dist.all_reduce(torch.ones(1))

    threading.Thread(target=work, daemon=True).start()
    time.sleep(stall_s)
    dump(rank, folder, ends)
    os._exit(0)
