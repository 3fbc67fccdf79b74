"""Recurrent layers in evaluation mode, exported: an operator of this package, or plain torch operations."""

import pytest
import torch

import noisyact as na

X = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", [na.NoisyLSTM, na.NoisyGRU])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_torch_export(kind, backend):
    layer = kind(5, 6, backend=backend).eval()
    program = torch.export.export(layer, (X,))
    torch.testing.assert_close(program.module()(X)[0], layer(X)[0])
    own = [node for node in program.graph.nodes if str(node.target).startswith("noisyact.")]
    assert len(own) == (1 if backend == "auto" else 0)


@pytest.mark.filterwarnings("ignore")
def test_onnx_by_the_reference(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    layer = na.NoisyGRU(5, 6, backend="reference").eval()
    file = tmp_path / "layer.onnx"
    torch.onnx.export(layer, (X[:2],), str(file), dynamo=True)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (name,) = [given.name for given in session.get_inputs()]
    found = session.run(None, {name: X[:2].numpy()})
    torch.testing.assert_close(torch.from_numpy(found[0]), layer(X[:2])[0].detach(), rtol=1e-4, atol=1e-5)
