"""Forked processes, DataLoader workers and threads: the kernels neither hang nor mix up, and give the same bits."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from one_seed import OneSeed

import noisyact as na

SETUP = """
import os, signal, sys, warnings
import torch
import noisyact as na
warnings.simplefilter("ignore")
torch.set_num_threads(4)
torch.manual_seed(0)
activation, layer = na.NoisyHardTanh(num_parameters=256), na.NoisyLSTM(64, 128)
x, sequence, given = torch.randn(512, 256) * 3, torch.randn(20, 32, 64), torch.randn(20, 32, 128)
x.requires_grad_()

def work():
    torch.manual_seed(1)
    y, (h, _) = activation(x), layer(sequence)
    gx, gp = torch.autograd.grad(y, (x, activation.p), y.detach())
    weights = torch.autograd.grad(h, list(layer.parameters()), given)
    with torch.no_grad():
        quiet = activation.eval()(x), layer.eval()(sequence)[0]
        activation.train(), layer.train()
    return [y, h, gx, gp, *weights, *quiet]

def same(found, wanted):
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))

def done(right):
    print("same" if right else "other", flush=True)
"""

FORK = """
wanted = work()
child = os.fork()
if child == 0:
    signal.alarm(60)
    found = work()
    torch.set_num_threads(1)  # torch's own operations would wait for ever otherwise; torch.equal is one
    done(same(found, wanted))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""

POOL = """
import multiprocessing
wanted = work()

def in_child(_):
    torch.set_num_threads(1)
    return same(work(), wanted)

with multiprocessing.get_context("fork").Pool(2) as pool:
    done(all(pool.map(in_child, range(4))))
"""

WORKERS = """
from torch.utils.data import DataLoader, Dataset
wanted = work()

class Places(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(same(work(), wanted))

done(torch.stack(list(DataLoader(Places(), batch_size=None, num_workers=2, multiprocessing_context="fork"))).all())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize("program", [FORK, POOL, WORKERS], ids=["fork", "pool", "workers"])
def test_kernels_run_in_a_forked_process(program):
    """GNU's OpenMP would wait there for threads that only the parent has."""
    run = subprocess.run(
        [sys.executable, "-c", SETUP + program], capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert (run.stdout, run.returncode) == ("same\n", 0), run.stdout + run.stderr


MODULES = {
    "activation": (lambda: na.NoisyHardTanh(num_parameters=64), (300, 64)),
    "lstm": (lambda: na.NoisyLSTM(64, 24), (7, 9, 64)),
    "gru": (lambda: na.NoisyGRU(64, 24, noise="nan"), (7, 9, 64)),
    "cell": (lambda: na.NoisyRNNCell(64, 24), (9, 64)),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_threads_at_once_give_what_one_gives(name, backward):
    make, shape = MODULES[name]
    module = make()
    inputs = [torch.randn(shape) * 3 for _ in range(4)]

    def work(number):
        x = inputs[number].clone().requires_grad_(backward)
        with OneSeed(1000 + number), torch.set_grad_enabled(backward):
            y = module(x)
            y = y[0] if isinstance(y, tuple) else y
        return [y.detach(), *(torch.autograd.grad(y.sum(), [x, *module.parameters()]) if backward else ())]

    wanted, found, barrier = [work(number) for number in range(4)], {}, threading.Barrier(4)

    def run(number):
        barrier.wait()
        found[number] = [work(number) for _ in range(20)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == list(range(4))
    for number, results in found.items():
        for result in results:  # a cell's products are torch's, whose last bits may depend on the thread
            torch.testing.assert_close(result, wanted[number], **({} if name == "cell" else {"rtol": 0, "atol": 0}))
    assert not torch.equal(wanted[0][0], wanted[1][0])


def test_one_graph_backward_in_two_threads():
    """Both read what forward has kept."""
    layer, x = na.NoisyLSTM(8, 6), torch.randn(5, 3, 8, requires_grad=True)
    y = layer(x)[0]
    wanted = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    found = []

    def run():
        for _ in range(30):
            found.append(torch.autograd.grad(y.sum(), x, retain_graph=True)[0])

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 60
    assert all(torch.equal(gradient, wanted) for gradient in found)
