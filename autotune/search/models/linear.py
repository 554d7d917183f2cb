"""Small Bayesian models solved in plain Python: ridge over named columns, a Gaussian process.

A study has tens of trials, so a Cholesky without any library takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


def cholesky(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the lower factor of a symmetric positive definite matrix."""
    n = len(matrix)
    lower = [[0.0] * n for _ in range(n)]
    for i in range(n):
        row = lower[i]
        for j in range(i + 1):
            other = lower[j]
            rest = matrix[i][j] - sum(map(float.__mul__, row[:j], other[:j]))
            if i == j:
                row[i] = math.sqrt(max(rest, 1e-12))
            else:
                row[j] = rest / other[j]
    return lower


def forward(lower: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solve lower @ x = right."""
    found: list[float] = []
    for i, row in enumerate(lower):
        found.append((right[i] - sum(map(float.__mul__, row[:i], found))) / row[i])
    return found


def backward(lower: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solve lower.T @ x = right."""
    n = len(lower)
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (right[i] - sum(lower[j][i] * found[j] for j in range(i + 1, n))) / lower[i][i]
    return found


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """Posterior of a Gaussian process.

    Args:
        kernel: Prior covariance of two points.
        points: Observed points.
        lower: Cholesky factor of the observations' covariance.
        weights: Covariance solved against the observations.
        expected: Prior mean of a point; None means 0 everywhere.
    """

    kernel: Callable[[object, object], float]
    points: tuple[object, ...]
    lower: Sequence[Sequence[float]]
    weights: Sequence[float]
    expected: Callable[[object], float] | None = None

    @classmethod
    def of(
        cls,
        points: Sequence[object],
        values: Sequence[float],
        noise: Sequence[float],
        kernel: Callable[[object, object], float],
        expected: Callable[[object], float] | None = None,
    ) -> GaussianProcess:
        """Condition on values with these standard deviations of noise; the prior mean is `expected`, or 0."""
        if expected is not None:
            values = [value - expected(point) for value, point in zip(values, points, strict=True)]
        lower = cholesky(
            [
                [*(kernel(a, b) for b in points[:i]), kernel(a, a) + noise[i] ** 2]
                for i, a in enumerate(points)
            ]
        )
        return cls(kernel, tuple(points), lower, backward(lower, forward(lower, values)), expected)

    def predict(self, point: object) -> tuple[float, float]:
        """Return the mean and standard deviation at a point, without noise."""
        across = [self.kernel(point, other) for other in self.points]
        mean = sum(map(float.__mul__, across, self.weights)) + self._prior(point)
        half = forward(self.lower, across)
        variance = self.kernel(point, point) - sum(h * h for h in half)
        return mean, math.sqrt(max(0.0, variance))

    def difference(self, one: object, other: object) -> tuple[float, float]:
        """Return the mean and standard deviation of `one` minus `other`, without noise."""
        across = [self.kernel(one, p) - self.kernel(other, p) for p in self.points]
        mean = sum(map(float.__mul__, across, self.weights)) + self._prior(one) - self._prior(other)
        half = forward(self.lower, across)
        apart = self.kernel(one, one) - 2.0 * self.kernel(one, other) + self.kernel(other, other)
        return mean, math.sqrt(max(0.0, apart - sum(h * h for h in half)))

    def _prior(self, point: object) -> float:
        return 0.0 if self.expected is None else self.expected(point)


@dataclass(frozen=True, slots=True)
class Ridge:
    """Linear model in named columns, each with a normal prior of mean 0; uses the same solver."""

    process: GaussianProcess

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, float]],
        values: Sequence[float],
        noise: Sequence[float],
        spread: Mapping[str, float],
        other_spread: float,
    ) -> Ridge:
        """Fit the model.

        Args:
            rows: Values by column; absent columns are 0.
            values: Observed values.
            noise: Standard deviation of each observation.
            spread: Prior standard deviation by column.
            other_spread: Prior standard deviation of columns that `spread` does not name.
        """

        def kernel(a: object, b: object) -> float:
            assert isinstance(a, Mapping)
            assert isinstance(b, Mapping)
            return float(sum(a[c] * b[c] * spread.get(c, other_spread) ** 2 for c in a if c in b))

        return cls(GaussianProcess.of(rows, values, noise, kernel))

    def predict(self, row: Mapping[str, float]) -> tuple[float, float]:
        """Return the mean and standard deviation of a row."""
        return self.process.predict(row)
