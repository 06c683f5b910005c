"""An exact Gaussian process with a length scale per feature, its hyperparameters found by gradient.

Kernel (Rasmussen & Williams 2006, eq. 5.2), features X (n, d), one length scale l_j each:

    k(x, x') = signal² · exp(-½ Σ_j (x_j - x'_j)² / l_j²),     y = f(X) + N(0, noise²)

Targets are standardised, so that the priors over hyperparameters mean the same at any scale of return. The
priors are broad; they matter while there are fewer observations than hyperparameters. Everything is float64
and free of randomness: equal data give equal bytes.

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

from parallel_agents.errors import NonFiniteError, ShapeError

__all__ = ["GaussianProcess", "Hyperparameters", "condition", "fit", "log_marginal_likelihood"]

Array = NDArray[np.float64]
_JITTER = 1e-8

# Means and deviations of log-normal priors: features differ by 1, targets have deviation 1, and an
# evaluation (a mean over episodes) errs much less than orders differ.
_LENGTH_PRIOR, _SIGNAL_PRIOR, _NOISE_PRIOR = (0.7, 1.0), (0.3, 0.7), (-2.5, 0.7)


@dataclass(frozen=True)
class Hyperparameters:
    """Length scales (d,), and the deviations of signal and noise."""

    lengths: Array
    signal: float
    noise: float


@dataclass(frozen=True)
class GaussianProcess:
    """The posterior after the observations it was conditioned on."""

    features: Array
    hyperparameters: Hyperparameters
    centre: float
    scale: float
    cholesky: Array
    weights: Array

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Posterior mean and deviation of f, without noise, at (m, d): both (m,)."""
        h = self.hyperparameters
        cross = _kernel(
            torch.as_tensor(features), torch.as_tensor(self.features), torch.as_tensor(h.lengths),
            torch.tensor(h.signal, dtype=torch.float64),
        )  # fmt: skip
        half = torch.linalg.solve_triangular(torch.as_tensor(self.cholesky), cross.T, upper=False)
        variance = (h.signal**2 - half.square().sum(dim=0)).clamp_min(0.0)
        mean = self.centre + self.scale * (cross @ torch.as_tensor(self.weights))
        return mean.numpy(), (self.scale * variance.sqrt()).numpy()


def fit(features: Array, targets: Array, steps: int = 60) -> GaussianProcess:
    """Condition on the observations (n, d) and (n,), at the most probable hyperparameters."""
    _check(features, targets)
    centre, scale = _standard(targets)
    x, y = torch.as_tensor(features), torch.as_tensor((targets - centre) / scale)
    d = x.shape[1]
    means = torch.tensor([_LENGTH_PRIOR[0]] * d + [_SIGNAL_PRIOR[0], _NOISE_PRIOR[0]], dtype=torch.float64)
    spreads = torch.tensor([_LENGTH_PRIOR[1]] * d + [_SIGNAL_PRIOR[1], _NOISE_PRIOR[1]], dtype=torch.float64)
    logs = means.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([logs], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = -log_marginal_likelihood(x, y, logs) + 0.5 * ((logs - means) / spreads).square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    found = logs.detach().exp().numpy()
    return condition(features, targets, Hyperparameters(found[:d], float(found[d]), float(found[d + 1])))


def condition(features: Array, targets: Array, hyperparameters: Hyperparameters) -> GaussianProcess:
    """The posterior at given hyperparameters, those of the standardised targets."""
    _check(features, targets)
    centre, scale = _standard(targets)
    x, y = torch.as_tensor(features), torch.as_tensor((targets - centre) / scale)
    signal = torch.tensor(hyperparameters.signal, dtype=torch.float64)
    covariance = _kernel(x, x, torch.as_tensor(hyperparameters.lengths), signal)
    noise = (hyperparameters.noise**2 + _JITTER) * torch.eye(len(x), dtype=x.dtype)
    cholesky = torch.linalg.cholesky(covariance + noise)
    weights = torch.cholesky_solve(y[:, None], cholesky)[:, 0]
    return GaussianProcess(features, hyperparameters, centre, scale, cholesky.numpy(), weights.numpy())


def log_marginal_likelihood(features: Tensor, targets: Tensor, logs: Tensor) -> Tensor:
    """log p(y | X) (Rasmussen & Williams, algorithm 2.1). `logs` (d + 2,): of lengths, signal and noise."""
    n, d = features.shape
    parameters = logs.exp()
    covariance = _kernel(features, features, parameters[:d], parameters[d])
    noise = (parameters[d + 1].square() + _JITTER) * torch.eye(n, dtype=features.dtype)
    cholesky = torch.linalg.cholesky(covariance + noise)
    weights = torch.cholesky_solve(targets[:, None], cholesky)[:, 0]
    value: Tensor = -0.5 * targets @ weights - cholesky.diagonal().log().sum() - 0.5 * n * np.log(2.0 * np.pi)
    return value


def _kernel(first: Tensor, second: Tensor, lengths: Tensor, signal: Tensor) -> Tensor:
    """(n, d), (m, d) -> (n, m)."""
    apart = (first[:, None, :] - second[None, :, :]) / lengths
    return signal.square() * torch.exp(-0.5 * apart.square().sum(dim=2))


def _standard(targets: Array) -> tuple[float, float]:
    deviation = float(targets.std())
    return float(targets.mean()), deviation if deviation > 0.0 else 1.0


def _check(features: Array, targets: Array) -> None:
    if features.ndim != 2 or targets.shape != features.shape[:1] or len(targets) == 0:
        raise ShapeError(
            f"features {features.shape} and targets {targets.shape} do not fit: give (n, d) and (n,), n at least 1"
        )
    if not (np.isfinite(features).all() and np.isfinite(targets).all()):
        raise NonFiniteError("features and targets of a Gaussian process must be finite: drop failed evaluations")
