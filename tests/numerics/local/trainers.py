"""Trainers as others write them, one rank each: DDP, FSDP2 with tensor parallelism, and tensor parallelism by hand."""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from numerics import watch
from tests.numerics.local.changes import BENIGN, BUGS
from tests.numerics.local.model import WORDS, build

STEPS, SEQUENCES, LENGTH = 2, 12, 9
PERTURBED = "perturbed"
"""A sound trainer whose embeddings are moved by one unit in the last place."""


def drawn():
    """The global batches, (STEPS, SEQUENCES, LENGTH)."""
    return torch.randint(0, WORDS, (STEPS, SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(1))


class CopyIn(torch.autograd.Function):
    """Identity forth; the sum over the group back."""

    @staticmethod
    def forward(ctx, x, group, bug):
        ctx.group, ctx.bug = group, bug
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        if ctx.bug != "no_backward_sum":
            dist.all_reduce(grad, group=ctx.group)
        return grad, None, None


class SumOut(torch.autograd.Function):
    """The sum over the group forth; identity back."""

    @staticmethod
    def forward(_ctx, x, group, bug):
        x = x.clone()
        if bug != "no_forward_sum":
            dist.all_reduce(x, group=group)
        return x * 2 if bug == "doubled_output" else x

    @staticmethod
    def backward(_ctx, grad):
        return grad, None, None


class Column(nn.Module):
    def __init__(self, whole, group, bug):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(2, 0)[dist.get_rank(group)].clone())
        self.group, self.bug = group, bug

    def forward(self, x):
        return functional.linear(CopyIn.apply(x, self.group, self.bug), self.weight)


class Row(nn.Module):
    def __init__(self, whole, group, bug):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(2, 1)[dist.get_rank(group)].clone())
        self.group, self.bug = group, bug

    def forward(self, x):
        return SumOut.apply(functional.linear(x, self.weight), self.group, self.bug)


def cut_by_hand(model, group, bug):
    """Cut every block for tensor parallelism; the bug is in the last one."""
    for layer in model.layers:
        own = bug if layer is model.layers[-1] else ""
        for name in ("wq", "wk", "wv"):
            setattr(layer.attention, name, Column(getattr(layer.attention, name), group, own))
        for name in ("w1", "w3"):
            setattr(layer.ffn, name, Column(getattr(layer.ffn, name), group, own))
        layer.attention.wo, layer.ffn.w2 = Row(layer.attention.wo, group, own), Row(layer.ffn.w2, group, own)


def cut_by_torch(model, mesh):
    """FSDP2 over tensor parallelism, by torch's own functions."""
    columns, rows = (
        ("attention.wq", "attention.wk", "attention.wv", "ffn.w1", "ffn.w3"),
        ("attention.wo", "ffn.w2"),
    )
    plan = {**{n: ColwiseParallel() for n in columns}, **{n: RowwiseParallel() for n in rows}}
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"])
    parallelize_module(model, mesh["tp"], {"head": ColwiseParallel(output_layouts=Replicate())})
    fully_shard(model, mesh=mesh["dp"])


def plant(model, bug):
    """Change the model as some bug would; those of collectives stand in the modules above."""
    last = model.layers[-1]
    if bug == "epsilon":
        last.ffn_norm.eps = 1e-3
    elif bug == "scaled_gradient":
        last.ffn.w1.weight.register_hook(lambda grad: 2 * grad)
    elif bug == PERTURBED:
        model.words.register_forward_hook(moved)


def moved(_module, _given, out):
    """Every element one unit in the last place up or down, by chance."""
    signs = torch.randint(0, 2, out.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return out * (1 + torch.finfo(out.dtype).eps * signs)


def report(out, rank, loss, parameters):
    """Write the step's loss and gradient norm as metrics; `loss` is this rank's mean."""
    loss = loss.detach().double()
    if dist.is_initialized():
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    if rank == 0:
        norm = torch.cat([p.grad.flatten().double() for p in parameters if p.grad is not None]).norm()
        path = out / "metrics" / "rank0.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"loss": float(loss), "grad_norm": float(norm)}) + "\n")


def trained(rank, world, store, kind, out, bug="", dtype=torch.float32):
    """Train a few steps; capture values into `out`."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model, _ = build(dtype)
    dp, coords, replicas = (rank, world), {"dp": rank}, None
    wrapped = model
    if kind == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    elif kind in {"fsdp_tp", "by_hand"}:
        dp, coords = (rank // 2, world // 2), {"dp": rank // 2, "tp": rank % 2}
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        if kind == "fsdp_tp":
            cut_by_torch(model, mesh)
        else:
            cut_by_hand(model, mesh["tp"].get_group(), bug)
            replicas = mesh["dp"].get_group()
    plant(model, bug)
    if bug in BENIGN or bug in BUGS:
        (BENIGN[bug] if bug in BENIGN else BUGS[bug][0])(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    told = (
        {"dp": dp, "coords": coords} if kind == "by_hand" else {}
    )  # of the others `watch` finds it by itself
    watcher = watch(wrapped, optimizer, micro_batches=2, out=out, level="tensors", **told)
    data = drawn()
    share = SEQUENCES // dp[1]
    for step in range(STEPS):
        total = torch.zeros(())
        for words in data[step, dp[0] * share : (dp[0] + 1) * share].chunk(2):
            logits = wrapped(words[:, :-1])
            watcher.targets(words[:, 1:])
            divisor = 2 * (1 if bug == "no_average" else dp[1] if replicas is not None else 1)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())
            (loss / divisor).backward()
            total += loss.detach() / 2
        for name, parameter in model.named_parameters():
            if replicas is not None and not (bug == "skipped" and name == "norm.weight"):
                dist.all_reduce(parameter.grad, group=replicas)
        if kind == "ddp":
            report(out, rank, total, model.parameters())
        optimizer.step()
        if bug == "touched_weight" and not step:
            with torch.no_grad():
                model.norm.weight.mul_(0.99)
        optimizer.zero_grad()
    watcher.close()
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


class Stage(nn.Module):
    """One layer of the model with what stands before the first and behind the last, under the model's names."""

    def __init__(self, model, rank, world):
        super().__init__()
        self.words = model.words if rank == 0 else None
        self.layers = nn.ModuleDict({str(rank): model.layers[rank]})
        self.norm, self.head = (model.norm, model.head) if rank == world - 1 else (None, None)

    def forward(self, x):
        x = x if self.words is None else self.words(x)
        x = next(iter(self.layers.values()))(x)
        return x if self.head is None else self.head(self.norm(x))


def pipelined(rank, world, store, out):
    """Train on torch's own pipeline, one layer a rank, 1F1B; capture values into `out`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    module = Stage(build()[0], rank, world)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    watcher = watch(
        module, optimizer, dp=(0, 1), micro_batches=4, out=out, level="tensors", coords={"pp": rank}
    )
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(
        stage,
        4,
        loss_fn=lambda logits, words: functional.cross_entropy(logits.flatten(0, 1), words.flatten()),
    )
    for words in drawn():
        given = [words[:, :-1]] if rank == 0 else []
        schedule.step(*given, **({"target": words[:, 1:]} if rank == world - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    dist.barrier()
    dist.destroy_process_group()
