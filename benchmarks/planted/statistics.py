"""From trials to figures: restricted means, survival, log-rank tests, recall. Needs the extra `benchmarks`.

A trial's time is its executions to detection; what is not found within the budget is censored there, never dropped. All
trials of a comparison have one budget, so the restricted mean is the mean of min(time, budget).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

#: Bootstrap samples.
REPEATS = 2000


@dataclass(frozen=True)
class Times:
    """Times of one fault and arm: `found` tells which are detections; the others are censored at the budget."""

    times: tuple[float, ...]
    found: tuple[bool, ...]

    @property
    def restricted_mean(self) -> float:
        return float(np.mean(self.times))

    @property
    def per_execution(self) -> float:
        """Detections an execution: the maximum-likelihood rate of a geometric time with censoring."""
        return sum(self.found) / sum(self.times)


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def ratio_and_difference(
    one: Mapping[str, Times], other: Mapping[str, Times], rng: np.random.Generator, repeats: int = REPEATS
) -> tuple[Estimate, Estimate]:
    """Restricted mean of `one` over, and minus, that of `other`, both means over the same faults.

    Faults are fixed; the trials of each are drawn anew, with replacement. Raises ValueError without a common fault.
    """
    names = sorted(set(one) & set(other))
    if not names:
        raise ValueError("no fault was tried in both arms")
    left, right = (_resampled([arm[name].times for name in names], rng, repeats) for arm in (one, other))
    means = [float(np.mean([arm[name].restricted_mean for name in names])) for arm in (one, other)]
    return (
        Estimate(means[0] / means[1], *_interval(left / right)),
        Estimate(means[0] - means[1], *_interval(left - right)),
    )


def mean_of(arm: Mapping[str, Times], rng: np.random.Generator, repeats: int = REPEATS) -> Estimate:
    """The restricted mean over all faults of `arm`."""
    value = float(np.mean([times.restricted_mean for times in arm.values()]))
    return Estimate(value, *_interval(_resampled([times.times for times in arm.values()], rng, repeats)))


def _resampled(samples: Sequence[Sequence[float]], rng: np.random.Generator, repeats: int) -> np.ndarray:
    """(repeats,): the mean over samples of the mean of each, drawn anew."""
    means = []
    for sample in samples:
        values = np.asarray(sample)
        means.append(values[rng.integers(len(values), size=(repeats, len(values)))].mean(1))
    return np.asarray(np.mean(means, axis=0))


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def log_rank(strata: Iterable[tuple[Times, Times]]) -> float:
    """The p-value of the log-rank test of two arms, stratified (Mantel, 1966): one stratum a fault.

    1 where no detection says anything.
    """
    surplus = variance = 0.0
    for one, other in strata:
        times = np.array([*one.times, *other.times])
        found = np.array([*one.found, *other.found])
        first = np.array([True] * len(one.times) + [False] * len(other.times))
        for at in np.unique(times[found]):
            risk = times >= at
            n, mine = int(risk.sum()), int((risk & first).sum())
            events = int((found & (times == at)).sum())
            share = mine / n
            surplus += int((found & first & (times == at)).sum()) - events * share
            if n > 1:
                variance += events * share * (1 - share) * (n - events) / (n - 1)
    return 1.0 if variance == 0 else float(stats.chi2.sf(surplus**2 / variance, 1))


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """P-values corrected for their number (Holm, 1979)."""
    ordered = sorted(values, key=lambda name: values[name])
    corrected: dict[str, float] = {}
    largest = 0.0
    for i, name in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - i) * values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in values}
