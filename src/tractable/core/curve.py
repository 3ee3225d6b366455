"""The curve of a climb (an optimisation): its objective and the scores of held-out rows, by step."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

HEIGHTS = "▁▂▃▄▅▆▇█"
WIDTH = 24  # characters of a curve that is drawn in text
SCORES = "held-out scores"  # the name of the scores among a run's traces


class Curve(NamedTuple):
    """The objective of a climb over its steps, and the scores of held-out rows.

    Attributes:
        steps: (n,) steps done at each value of the objective.
        objective: (start, n) in nats (units of the natural logarithm), NaN after a start's end. The values are noisy
            if the method uses batches or random numbers; those of ``MonteCarloEM`` are relative to the start.
        held_out_steps: (m,) steps done at each evaluation of the held-out rows.
        held_out: (m,) mean log density of the held-out rows, in nats a row.
    """

    steps: np.ndarray
    objective: np.ndarray
    held_out_steps: np.ndarray
    held_out: np.ndarray

    @classmethod
    def of(cls, traces: Mapping[str, np.ndarray], every: int) -> "Curve | None":
        """The curve of a run's traces, which have one value for ``every`` steps; None without a finite objective."""
        objective = np.atleast_2d(np.asarray(traces.get("objective", ()), np.float64))
        if not np.isfinite(objective).any():
            return None
        scores = np.asarray(traces.get(SCORES, np.zeros((0, 2))))
        return cls(every * (1 + np.arange(objective.shape[1])), objective, scores[:, 0].astype(int), scores[:, 1])

    @property
    def best(self) -> np.ndarray:
        """(n,) the objective of the start that ended highest, without its NaN."""
        ends = [start[np.isfinite(start)][-1] if np.isfinite(start).any() else -np.inf for start in self.objective]
        highest = self.objective[int(np.argmax(ends))]
        return highest[np.isfinite(highest)]

    def __str__(self) -> str:
        """The climb in one line: first and last value, number of steps, and shape."""
        best = self.best
        places = np.linspace(0, len(best), min(WIDTH, len(best)) + 1).astype(int)
        means = np.array([best[a:b].mean() for a, b in itertools.pairwise(places)])
        low, steps = np.quantile(means, 0.1), np.diff(means)
        reach = max(means.max() - low, 1e-300)
        if len(steps) and np.mean(steps < 0) > 0.2:  # in a noisy trace, so that noise alone does not look like a rise
            reach = max(reach, 16 * np.median(np.abs(steps)))
        heights = np.clip((means - low) / reach * (len(HEIGHTS) - 1), 0, len(HEIGHTS) - 1)
        shape = "".join(HEIGHTS[int(height)] for height in heights)
        scores = f"; held-out rows {self.held_out.max():.4g} nats a row at best" if len(self.held_out) else ""
        return f"{best[0]:.6g} to {best[-1]:.6g} nats in {self.steps[len(best) - 1]:,} steps {shape}{scores}"


def pad_traces(traces: Sequence[np.ndarray | Sequence[float]]) -> np.ndarray:
    """Traces of several starts as one array (start, step), with NaN after the end of each climb."""
    longest = max(1, *map(len, traces))
    return np.array([np.pad(t, (0, longest - len(t)), constant_values=np.nan) for t in traces])
