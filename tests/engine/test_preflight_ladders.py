"""What a ladder cannot learn from is said before anything runs, in a sentence that offers the choices."""

import numpy as np
import pytest

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.engine import preflight
from tractable.ladders.autoencoding import AutoEncoding
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import categorical, layer, standard_normal, top

pytestmark = pytest.mark.test

MANY = 784
LARGE = Ladder([layer(2, MANY), standard_normal(2)], bottom_up([layer(MANY, 2, "normal")]))
SMALL = Ladder([layer(2, 4), standard_normal(2)], bottom_up([layer(4, 2, "normal")]))
BELIEF = Ladder([layer(2, 4), top(2)], bottom_up([layer(4, 2)]))
LEVELS = tr.models.latent_gaussian(4, 2, hidden=(), family=categorical(3))
X = np.ones((20, 4))


def said(ask, kind):
    with pytest.raises(kind) as caught:
        ask()
    return str(caught.value)


@pytest.mark.laws
def test_grey_pixels():
    grey = np.ones((3, MANY))
    grey[1, 400:402] = 0.37
    sentence = said(lambda: tr.infer(LARGE, tr.Data(grey), AutoEncoding(batch_size=2)), DataError)
    assert "Row 1 of y, with 2 of its 784 numbers outside (the first is 0.37, in column 400)" in sentence
    assert "binarise them" in sentence and "redraw=True" in sentence and "continuous bernoulli" in sentence
    assert len(sentence) < 450
    few = said(lambda: preflight.check(SMALL, tr.Data(np.array([[0, 1, 0.5, 1]]))), DataError)
    assert "Row 0 of y, [0.0, 1.0, 0.5, 1.0], lies outside" in few


def test_rows_of_several_parts_are_short_too():
    dist = tr.models.linear.dist

    def likelihood(p):
        return {"a": dist.Normal(p, np.ones(MANY)).to_event(1), "b": dist.Poisson(np.ones(MANY)).to_event(1)}

    model = tr.Model(dist.Normal(0.0, 1.0), likelihood)
    sentence = said(
        lambda: preflight.check(model, tr.Data({"a": np.ones((1, MANY)), "b": -np.ones((1, MANY))})), DataError
    )
    assert "1, 1, 1" in sentence and "…" in sentence and len(sentence) < 300


@pytest.mark.parametrize(
    ("ask", "kind", "match"),
    [
        (lambda: tr.infer(SMALL, tr.Data(np.where(X > 0, np.nan, X)), AutoEncoding()), DataError, "impute them"),
        (lambda: tr.infer(SMALL, tr.Data(np.full((20, 4), np.nan), missing="keep"), AutoEncoding(batch_size=5)),
         DataError, "outside the support"),
        (lambda: tr.infer(SMALL, tr.Data(X, X), AutoEncoding(batch_size=5)), ModelError, "without given="),
        (lambda: AutoEncoding(samples=0), SettingsError, r"samples=...\) expects a whole number ≥ 1; got 0"),
        (lambda: tr.infer(SMALL, tr.Data(X), AutoEncoding(batch_size=21)), SettingsError, "more than the 20 rows"),
        (lambda: tr.infer(SMALL, tr.Data(X[:, :3]), AutoEncoding(batch_size=5)), ModelError, r"shape \(4,\).*\(3,\)"),
        (lambda: tr.infer(BELIEF, tr.Data(X), AutoEncoding(batch_size=5)), ModelError,
         "layer 1 is Bernoulli, whose draws have no derivative. NVIL, VIMCO, WakeSleep and ReweightedWakeSleep"),
        (lambda: tr.infer(tr.models.linear.gaussian_mixture_2d(), tr.Data(np.ones(20)), AutoEncoding(batch_size=5)),
         ModelError, "learns ladders"),
        (lambda: tr.infer(SMALL, None, AutoEncoding()), DataError, "needs data"),
        (lambda: tr.infer(LEVELS, tr.Data(X), AutoEncoding(batch_size=5)), DataError, r"type float.*y.astype\(int\)"),
    ],
)  # fmt: skip
def test_faults(ask, kind, match):
    with pytest.raises(kind, match=match):
        ask()
