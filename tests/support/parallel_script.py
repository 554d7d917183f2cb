"""A small training of several processes over gloo: ``python parallel_script.py --accumulate 4``.

It writes down what it saw itself: its parameters, the sizes of what it exchanged in its last step (by the
profiler, or by its own communication hook), and the norms of its gradients.
"""

import argparse
import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PARSER = argparse.ArgumentParser()
PARSER.add_argument("--batch-size", type=int, default=8)
PARSER.add_argument("--samples", type=int, default=256)
PARSER.add_argument("--steps", type=int, default=12)
PARSER.add_argument("--accumulate", type=int, default=1)
PARSER.add_argument("--wrap", default="ddp")
PARSER.add_argument("--bucket", type=float, default=None)
PARSER.add_argument("--branch", default="always")
PARSER.add_argument("--find-unused", action="store_true")
PARSER.add_argument("--adamw", action="store_true")
PARSER.add_argument("--norm", action="store_true")
PARSER.add_argument("--hook", action="store_true")
PARSER.add_argument("--clip", action="store_true")
PARSER.add_argument("--no-sync", action="store_true")
PARSER.add_argument("--profile", action="store_true")
PARSER.add_argument("--strays", action="store_true", help="the second process undoes a setting")


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.first = nn.Linear(16, 64)
        self.norm = nn.BatchNorm1d(64) if args.norm else nn.Identity()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.extra = nn.Linear(64, 64)
        self.last = nn.Linear(64, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.norm(self.first(x)).relu()
        for block in self.blocks:
            x = block(x).relu()
        if self.args.branch == "always" or (self.args.branch == "sometimes" and self.calls % 3):
            x = x + self.extra(x)
        return self.last(x)


def wrapped(net, args, sent):
    if args.wrap == "fsdp":
        from torch.distributed import fsdp

        for block in [*net.blocks, net.extra]:
            fsdp.fully_shard(block)
        return fsdp.fully_shard(net)
    options = {} if args.bucket is None else {"bucket_cap_mb": args.bucket}
    model = DistributedDataParallel(net, find_unused_parameters=args.find_unused, **options)
    if args.strays and dist.get_rank() == 1:
        model.gradient_as_bucket_view = False
    if args.hook:

        def count(state, bucket):
            sent.append(bucket.buffer().numel() * bucket.buffer().element_size())
            return default_hooks.allreduce_hook(state, bucket)

        model.register_comm_hook(None, count)
    return model


def train(args, look=dict):
    torch.manual_seed(3)
    x = torch.randn(args.samples, 16)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data, shuffle=False))
    net, sent = Net(args), []
    model = wrapped(net, args, sent)
    kind = torch.optim.AdamW if args.adamw else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=0.02)
    steps = passes = samples = 0
    norms = []
    watch = profile(activities=[ProfilerActivity.CPU], record_shapes=True) if args.profile else None
    while steps < args.steps:
        for place, (inputs, targets) in enumerate(loader):
            if passes % args.accumulate == 0:
                optimizer.zero_grad()
                if steps == args.steps - 1:
                    sent.clear()
                    if watch is not None:
                        watch.start()
            passes += 1
            is_last = passes % args.accumulate == 0 or place == len(loader) - 1
            with model.no_sync() if args.no_sync and not is_last else contextlib.nullcontext():
                loss = nn.functional.mse_loss(model(inputs), targets) / args.accumulate
                loss.backward()
            samples += len(inputs)
            if not is_last:
                continue
            passes = 0
            if args.clip:
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
            steps += 1
            if steps == args.steps:
                break
    exchanged = list(sent)
    if watch is not None:
        watch.stop()
        events = [e for e in watch.events() if e.name == "gloo:all_reduce"]
        exchanged = [4 * torch.Size(e.input_shapes[0]).numel() for e in events]
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return {
        "weights": [n for p in parameters for n in p.detach().double().flatten().tolist()],
        "exchanged": exchanged,
        "norms": norms,
        "kept": sum(v.numel() for held in optimizer.state.values() for v in held.values()),
        "format": str(parameters[0].dtype),
        "steps": steps,
        "samples": samples,
        "cpus": sorted(os.sched_getaffinity(0)),
        **look(),
    }


def tell_all(found):
    """Print what every process found, from the first one."""
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, found)
    if dist.get_rank() == 0:
        print(json.dumps(everything))
        sys.stdout.flush()
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    tell_all(train(PARSER.parse_args()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
