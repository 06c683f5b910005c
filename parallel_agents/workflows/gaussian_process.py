"""An exact Gaussian process with a length scale per feature, its hyperparameters fitted by gradient.

Kernel (Rasmussen & Williams 2006, eq. 5.2), features X (n, d), one length scale l_j each:

    k(x, x') = signal² · exp(-½ Σ_j (x_j - x'_j)² / l_j²),     y = f(X) + N(0, noise²)

Targets are standardised, so that the priors over hyperparameters mean the same at any scale of return. The priors are
broad; they matter while there are fewer observations than hyperparameters. Everything is float64 and deterministic:
equal data give equal bytes.

>>> X = np.array([[0.0], [1.0], [2.0]])
>>> process = fit(X, np.array([0.0, 1.0, 2.0]))
>>> mean, deviation = process.predict(np.array([[1.0]]))
>>> bool(abs(mean[0] - 1.0) < 0.2), bool(deviation[0] > 0)
(True, True)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.core.errors import NonFiniteError, ShapeError

Array = NDArray[np.float64]
_JITTER = 1e-8

# Means and deviations of log-normal priors: features differ by 1, targets have deviation 1, and the error of an
# evaluation (a mean over episodes) is much smaller than the differences between orders.
_LENGTH_PRIOR, _SIGNAL_PRIOR, _NOISE_PRIOR = (0.7, 1.0), (0.3, 0.7), (-2.5, 0.7)


@dataclass(frozen=True)
class Hyperparameters:
    """Length scales (d,), and the standard deviations of signal and noise."""

    lengths: Array
    signal: float
    noise: float


@dataclass(frozen=True)
class GaussianProcess:
    """The posterior given the observations that it was conditioned on."""

    features: Array
    hyperparameters: Hyperparameters
    centre: float
    scale: float
    cholesky: Array
    weights: Array

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Return the posterior mean and deviation of f, without noise, at features (m, d): both (m,)."""
        h = self.hyperparameters
        cross = _kernel(
            torch.as_tensor(features), torch.as_tensor(self.features), torch.as_tensor(h.lengths),
            torch.tensor(h.signal, dtype=torch.float64),
        )  # fmt: skip
        half = torch.linalg.solve_triangular(torch.as_tensor(self.cholesky), cross.T, upper=False)
        variance = (h.signal**2 - half.square().sum(dim=0)).clamp_min(0.0)
        mean = self.centre + self.scale * (cross @ torch.as_tensor(self.weights))
        return mean.numpy(), (self.scale * variance.sqrt()).numpy()


def fit(features: Array, targets: Array, noise: float | None = None, steps: int = 60) -> GaussianProcess:
    """Return the posterior given features (n, d) and targets (n,), at the most probable hyperparameters.

    noise: the standard deviation of a target, if it was measured; None: it is fitted too.
    """
    _check(features, targets)
    centre, scale = _centre_and_scale(targets)
    x, y = torch.as_tensor(features), torch.as_tensor((targets - centre) / scale)
    d = x.shape[1]
    priors = torch.tensor([_LENGTH_PRIOR] * d + [_SIGNAL_PRIOR, _NOISE_PRIOR], dtype=torch.float64)
    means, deviations = priors[:, 0].clone(), priors[:, 1].clone()
    if noise is not None:  # a prior so narrow that the fit stays there
        means[-1], deviations[-1] = float(np.log(max(noise / scale, 1e-6))), 1e-3
    logs = means.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logs], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -log_marginal_likelihood(x, y, logs) + 0.5 * ((logs - means) / deviations).square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    fitted = logs.detach().exp().numpy()
    return condition(features, targets, Hyperparameters(fitted[:d], float(fitted[d]), float(fitted[d + 1])))


def condition(features: Array, targets: Array, hyperparameters: Hyperparameters) -> GaussianProcess:
    """Return the posterior at these hyperparameters, which are those of the standardised targets."""
    _check(features, targets)
    centre, scale = _centre_and_scale(targets)
    x, y = torch.as_tensor(features), torch.as_tensor((targets - centre) / scale)
    h = hyperparameters
    signal = torch.tensor(h.signal, dtype=torch.float64)
    cholesky, weights = _solve(x, y, torch.as_tensor(h.lengths), signal, h.noise**2)
    return GaussianProcess(features, h, centre, scale, cholesky.numpy(), weights.numpy())


def log_marginal_likelihood(features: Tensor, targets: Tensor, logs: Tensor) -> Tensor:
    """Return log p(y | X) (Rasmussen & Williams, algorithm 2.1). `logs` (d + 2,): of lengths, signal and noise."""
    n, d = features.shape
    parameters = logs.exp()
    cholesky, weights = _solve(features, targets, parameters[:d], parameters[d], parameters[d + 1].square())
    value: Tensor = -0.5 * targets @ weights - cholesky.diagonal().log().sum() - 0.5 * n * np.log(2.0 * np.pi)
    return value


def _solve(x: Tensor, y: Tensor, lengths: Tensor, signal: Tensor, noise: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of the covariance K of the observations, and K⁻¹ y. `noise` is a variance."""
    covariance = _kernel(x, x, lengths, signal) + (noise + _JITTER) * torch.eye(len(x), dtype=x.dtype)
    cholesky = torch.linalg.cholesky(covariance)
    return cholesky, torch.cholesky_solve(y[:, None], cholesky)[:, 0]


def _kernel(first: Tensor, second: Tensor, lengths: Tensor, signal: Tensor) -> Tensor:
    """Return the kernel (n, m) between features (n, d) and (m, d)."""
    differences = (first[:, None, :] - second[None, :, :]) / lengths
    return signal.square() * torch.exp(-0.5 * differences.square().sum(dim=2))


def _centre_and_scale(targets: Array) -> tuple[float, float]:
    """Return the mean and the deviation by which targets are standardised; equal targets have scale 1."""
    deviation = float(targets.std())
    return float(targets.mean()), deviation if deviation > 0.0 else 1.0


def _check(features: Array, targets: Array) -> None:
    """Raise ShapeError or NonFiniteError for observations that cannot be used."""
    if features.ndim != 2 or targets.shape != features.shape[:1] or len(targets) == 0:
        raise ShapeError(
            f"features {features.shape} and targets {targets.shape} do not fit: give (n, d) and (n,), n at least 1"
        )
    if not (np.isfinite(features).all() and np.isfinite(targets).all()):
        raise NonFiniteError("features and targets of a Gaussian process must be finite: drop failed evaluations")
