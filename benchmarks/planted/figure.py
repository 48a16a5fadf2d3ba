"""The figure: the share of trials that have not found their fault yet, by executions (Kaplan–Meier)."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from lifelines import KaplanMeierFitter
from matplotlib import pyplot as plt

from benchmarks.planted.study import Record
from benchmarks.planted.summary import by_arm, hard_faults

#: The same inputs in each trial: no curve.
_WITHOUT = ("seeds",)


def draw(record: Record, path: Path) -> None:
    """Write an SVG of one curve an arm, over the faults that uniform inputs find slower than 1 in 100 executions."""
    arms = by_arm(record)
    hard = hard_faults(arms)
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for arm, faults in arms.items():
        chosen = [faults[name] for name in hard if name in faults]
        if arm in _WITHOUT or not chosen:
            continue
        times = [time for one in chosen for time in one.times]
        found = [hit for one in chosen for hit in one.found]
        KaplanMeierFitter(label=f"{arm} ({len(chosen)} faults, {len(times)} trials)").fit(
            times, found
        ).plot_survival_function(ax=axes)
    axes.set(xscale="log", xlabel="executions", ylabel="trials that have not found their fault", ylim=(0, 1.05))
    about = record.about
    axes.set_title(
        f"Planted faults that uniform inputs find slower than 1 in 100; {about['processor']}, torch {about['torch']}",
        fontsize=8,
    )
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
