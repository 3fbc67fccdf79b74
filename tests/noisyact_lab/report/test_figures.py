"""The figures that need no training: what they show is what the library computes, and they are the same every time."""

import math

import numpy as np
import pytest
import torch

from noisyact import equations, functional
from noisyact.pairs import HARD_TANH
from noisyact.schemes import NAH, NAN
from noisyact_lab.engine.folder import picture
from noisyact_lab.report import figures


def data(line):
    return tuple(torch.from_numpy(np.asarray(values, dtype=np.float64)) for values in line.get_data())


def test_derivatives_are_those_of_the_functions():
    (ax,) = figures.derivatives().axes
    lines = {line.get_label(): data(line) for line in ax.lines}
    assert list(lines) == ["tanh", "hard-tanh", "sigmoid", "hard-sigmoid"]
    x, y = lines["tanh"]
    assert torch.allclose(y, 1 - torch.tanh(x) ** 2)
    x, y = lines["sigmoid"]
    assert torch.allclose(y, torch.sigmoid(x) * torch.sigmoid(-x))
    x, y = lines["hard-tanh"]
    assert torch.equal(y, (x.abs() <= 1).double())
    x, y = lines["hard-sigmoid"]
    assert torch.equal(y, 0.25 * (x.abs() <= 2))


def test_objective_has_its_minima_and_flat_parts():
    x = torch.linspace(-8, 8, 1601, dtype=torch.float64)
    y = figures.objective(x)
    inner = (y[1:-1] < y[:-2] - 1e-9) & (y[1:-1] < y[2:] - 1e-9)
    assert x[1:-1][inner].tolist() == pytest.approx([-4.0, -1.0, 3.0])
    assert y[(x < -5) | (x > 6)].abs().max() < 1e-12
    assert x[y.argmin()] == pytest.approx(3.0)


def test_noise_is_added_to_x_and_smooths():
    x = torch.linspace(-7, 7, 29, dtype=torch.float64)
    xi = torch.randn(29, dtype=torch.float64)
    assert torch.allclose(figures.objective(x, 0.7, xi), figures.objective(x + 0.7 * xi))
    # The mean over xi against an integral with the normal density.
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    exact = torch.trapezoid(figures.objective(x[:, None] + 2.0 * grid) * density, grid)
    assert torch.allclose(figures.smoothed(x, 2.0), exact, atol=5e-3)
    assert torch.allclose(figures.smoothed(x, 0.0), figures.objective(x))


def test_minimum_moves_as_the_noise_is_annealed():
    left, right = figures.annealing().axes
    curves, dots = left.lines[::2], left.lines[1::2]
    places = [float(data(dot)[0]) for dot in dots]
    assert len(curves) == 4
    assert places == sorted(places)
    assert places[-1] == pytest.approx(3.0, abs=0.02)
    for curve, dot in zip(curves, dots, strict=True):
        assert data(curve)[1].min() == data(dot)[1]
    still, *annealed, _ = right.lines
    assert set(still.get_ydata()) == {-6.0}  # the gradient is exactly 0 there
    assert len(annealed) == 5
    assert all(abs(line.get_ydata()[-1] - 3.0) < 0.3 for line in annealed)


def test_gaussian_noise_shows_h_u_delta_and_samples():
    (ax,) = figures.gaussian_noise().axes
    lines = {line.get_label(): data(line) for line in ax.lines}
    x, h = lines["$h(x)$"]
    assert torch.equal(h, HARD_TANH.h(x))
    x, u = lines["$u(x)$"]
    assert torch.equal(u, x)
    x, phi = lines[r"$\phi(x, \xi)$, samples"]
    assert torch.equal(phi[x.abs() <= 1], x[x.abs() <= 1])
    noise = (phi - HARD_TANH.h(x))[x.abs() > 1]
    sigma = equations.sigma(equations.delta(HARD_TANH.h(x), x), 1.0, 2.0)[x.abs() > 1]
    assert (noise != 0).all()
    assert abs((noise / sigma).std() - 1) < 0.15
    assert len(ax.collections) == 2
    (arrow, label) = ax.texts
    assert arrow.xy == (2.6, 1.0)
    assert arrow.get_position() == (2.6, 2.6)
    assert "Delta" in label.get_text()


def test_alphas_below_one_one_and_above():
    figure = figures.alphas()
    assert len(figure.axes) == 6
    kinds = [kind(c=2.0, alpha=alpha) for kind in (NAN, NAH) for alpha in (0.85, 1.0, 1.15)]
    for ax, noise in zip(figure.axes, kinds, strict=True):
        assert rf"\alpha = {noise.alpha:g}" in ax.get_title()
        samples, h, mean = (data(line) for line in ax.lines)
        assert torch.equal(h[1], functional.hard_tanh(h[0]))
        assert torch.allclose(mean[1], functional.noisy_hard_tanh(mean[0], noise, training=False))
        right = samples[0] > 2
        outward = samples[1][right].mean() - 1
        if noise.name == "nan":
            assert (outward > 0.1) == (noise.alpha < 1)
            assert (outward < -0.1) == (noise.alpha > 1)
        assert abs(samples[1][right].mean() - mean[1][right].mean()) < 0.1


def test_all_are_written_and_again_the_same(tmp_path):
    first, second = (figures.draw_all(tmp_path / name) for name in ("a", "b"))
    assert sorted(path.name for path in first) == sorted(
        f"{name}.{kind}" for name in figures.FIGURES for kind in ("svg", "png")
    )
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert sorted((tmp_path / "a").iterdir()) == sorted(first)  # nothing half-written beside them
    assert all(b"<dc:date>" not in path.read_bytes() for path in first)


def test_a_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    old = picture.save(picture.grid(1, 1)[0], tmp_path, "it")
    before = [path.read_bytes() for path in old]

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        picture.save(picture.grid(2, 2)[0], tmp_path, "it")
    assert [path.read_bytes() for path in old] == before
    assert len(list(tmp_path.iterdir())) == 2
