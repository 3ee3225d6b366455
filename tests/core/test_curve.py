"""The curve of a climb: every method that climbs has one, the progress callback hears it, and it is kept."""

from typing import Any

import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core.curve import Curve

pytestmark = pytest.mark.test

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X @ [1.0, -0.5] + 0.5 * RNG.normal(size=60)
LINE = tr.Model(
    {"weights": dist.Normal(0.0, np.ones(2)), "sd": dist.HalfNormal(1.0)},
    lambda params, x: dist.Normal(x @ params["weights"], params["sd"]),
)
MIXTURE = tr.models.gaussian_mixture(2, 1)
ROWS, NEW, NUMBERS = tr.Data(Y[:40], X[:40]), tr.Data(Y[40:], X[40:]), tr.Data(np.r_[Y - 3, Y + 3][:, None])
CLIMBS: dict[str, tuple[tr.Model, tr.Data, Any]] = {
    "L-BFGS": (LINE, ROWS, tr.MAP(starts=2)),
    "Adam": (LINE, ROWS, tr.MAP(optimizer="adam", steps=100)),
    "mode": (LINE, ROWS, tr.Laplace()),
    "bound": (LINE, ROWS, tr.MeanField(steps=300)),
    "EM": (MIXTURE, NUMBERS, tr.EM(starts=2, steps=20)),
    "online EM": (MIXTURE, NUMBERS, tr.OnlineEM(epochs=2, batch_size=20)),
    "ensemble": (LINE, ROWS, tr.DeepEnsemble(size=2, member=tr.MAP(steps=20))),
}


@pytest.mark.parametrize("name", CLIMBS)
@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_every_climb_has_a_curve_that_progress_hears(name):
    model, data, method = CLIMBS[name]
    heard = []
    posterior = tr.infer(model, data, method, verify=None, progress=lambda *call: heard.append(call))
    curve = posterior.curve
    assert curve is not None and curve.steps[-1] == len(curve.steps) * posterior.thin
    values = [call[3]["objective"] for call in heard if len(call) > 3 and call[3]]
    assert name == "ensemble" or (np.isfinite(values).all() and len(values))
    assert str(curve).endswith(("█", "▇", "▆", "▅", "▄", "▃", "▂", "▁"))
    if name in ("L-BFGS", "EM"):  # the last value is the objective that the result has
        assert curve.best[-1] == pytest.approx(posterior.found["objective"], rel=1e-3)
        assert np.all(np.diff(curve.best) > -1e-3)


def test_draws_have_no_curve_and_a_callback_of_three_is_called():
    heard = []

    def progress(phase, done, of):
        heard.append((phase, done, of))

    chains = tr.infer(LINE, ROWS, tr.RandomWalk(chains=1, draws=20, warmup=20), verify=None, progress=progress)
    assert chains.curve is None and heard
    assert tr.infer(LINE, ROWS, tr.MAP(), verify=None, progress=progress).curve is not None


@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")
def test_held_out_scores_are_of_their_steps_and_are_saved(tmp_path):
    method = tr.MAP(optimizer="adam", steps=200)
    posterior = tr.infer(LINE, ROWS, method, held_out=NEW, verify=None)
    curve = posterior.curve
    assert curve is not None and len(curve.held_out) > 2
    assert np.all(np.diff(curve.held_out_steps) > 0) and curve.held_out_steps[-1] <= curve.steps[-1]
    # The score is the mean log density of the rows held out, at the state that was kept.
    kept = curve.held_out[curve.held_out_steps == posterior.found["held-out best"]]
    assert kept == pytest.approx(np.mean(posterior.log_predictive(NEW)), rel=1e-4)
    posterior.save(tmp_path / "run")
    again = tr.load(tmp_path / "run", LINE).curve
    assert again is not None and all(np.array_equal(a, b) for a, b in zip(curve, again, strict=True))


def test_a_curve_in_words_is_of_the_start_that_ended_highest():
    curve = Curve.of({"objective": np.array([[-9.0, -8.0, np.nan], [-5.0, -4.0, -3.0]])}, 10)
    assert curve is not None and str(curve).startswith("-5 to -3 nats in 30 steps")
    assert Curve.of({"objective": np.full((1, 3), np.nan)}, 1) is None and Curve.of({}, 1) is None


def test_noise_does_not_look_like_a_climb():
    noise = Curve.of({"objective": RNG.normal(size=(1, 600))}, 1)
    climb = Curve.of({"objective": RNG.normal(size=(1, 600)) - 50 * np.exp(-np.arange(600) / 100)}, 1)
    assert "█" not in str(noise) and "█" in str(climb)
