"""torch.jit.trace of models with noisy activations, and what is built on it: TensorBoard's graph, the old exporter."""

import io

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import noisyact as na

MODELS = {
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(8, 16), na.NoisyHardTanh(num_parameters=16), nn.Linear(16, 4), na.NoisyReLU("nani")
        ),
        (5, 8),
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), na.NoisyHardSigmoid("nah"), nn.Flatten(), nn.Linear(144, 2)),
        (2, 3, 8, 8),
    ),
    "any pair": (lambda: nn.Sequential(na.NoisyActivation(na.harden(torch.erf), "nah:c=9")), (6, 4)),
}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


def case(name, training, dtype=torch.float32):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    return make().to(dtype).train(training), (torch.randn(shape) * 5).to(dtype)


def results(model, *arguments):
    """Output and gradients with the noise of one seed."""
    torch.manual_seed(3)
    model.zero_grad()
    y = model(*arguments)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_trace_is_the_model(name, training, dtype):
    model, x = case(name, training, dtype)
    traced = torch.jit.trace(model, (x,), check_trace=not training)
    for given in (x, torch.cat([x, -x])):
        for mine, right in zip(results(traced, given), results(model, given), strict=True):
            torch.testing.assert_close(mine, right)
    outputs = [traced(x) for _ in range(2)]
    assert torch.equal(*outputs) != training  # noise is drawn at every call, and only in training
    na.set_noise_scale(model, 0.1)
    torch.testing.assert_close(results(traced, x), results(model, x))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    torch.testing.assert_close(results(torch.jit.load(file), x)[0], results(model, x)[0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_tensorboard_draws_the_graph(name, training, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    model, x = case(name, training)
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(model, x)
    assert list(tmp_path.glob("events*"))


@pytest.mark.parametrize("name", MODELS)
def test_the_old_exporter_gives_the_expectation(name):
    model, x = case(name, training=False)
    file = io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False, input_names=["x"])
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], model(x).detach(), rtol=1e-4, atol=1e-5)
