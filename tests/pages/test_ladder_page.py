"""The report of a ladder stands alone, and its pictures are what they say."""

import base64
import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract_method import quick_compilation
from matplotlib.image import imread

import tractable as tr
from tractable.core.errors import DataError
from tractable.diagnostics.belief import Coded, Point
from tractable.diagnostics.report import Report
from tractable.ladders.autoencoding import AutoEncoding
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import categorical, layer, standard_normal, top
from tractable.pages import ladders as ladder_page
from tractable.pages.page import write_page
from tractable.pages.render import png
from tractable.posterior.posterior import Posterior

pytestmark = pytest.mark.laws


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Programs here run for less than they compile."""
    with quick_compilation():
        yield


def posterior(ladder: Ladder, x, method=None) -> Posterior:
    """At its first weights, as if learnt."""
    params = ladder.initial(jax.random.key(0))
    found = {"settled": True, "elbo": -1.0, "bound": -0.9, "weights' sample size": 0.5, "samples": 10, "steps": 50}
    found |= {f"cost h{i + 1}": 1.5 for i in range(ladder.depth)} | {f"active h{i + 1}": 1 for i in range(ladder.depth)}
    point, trace = np.asarray(ladder.space.ravel(params["theta"])), np.linspace(-90.0, -60.0, 50)[None]
    learnt = Coded(position=point, info={"objective": trace}, network=params["phi"])
    belief, judged = (Point(position=point), Report("trust", (), "MAP")) if method else (learnt, None)
    return Posterior(ladder, tr.Data(x), method or AutoEncoding(), 0, belief, found, judged=judged)


def page(folder, of: Posterior, **options) -> str:
    text = write_page(folder, of, title="A title", **options).read_text(encoding="utf-8")
    assert "http" not in text and "<script" not in text and "url(" not in text.replace("url(#", "")
    assert not re.search(r"""(src|href)=(?!["']?(#|data:image/png;base64,))""", text), "something is fetched"
    assert ">nan<" not in text and ">inf<" not in text and "#0a0b" not in text
    return text


def test_pictures(tmp_path):
    """A row is a picture where its numbers are a square; held-out rows are told by their bound."""
    x = (np.random.default_rng(0).random((40, 16)) > 0.5).astype(float)
    ladder = Ladder([layer(2, 16), standard_normal(2)], bottom_up([layer(16, 2, "normal")]))
    text = page(tmp_path, posterior(ladder, x), held_out=tr.Data(1 - x[:20]))
    for word in ("Layers", "Climb", "Drawn from the model", "Reconstructions", "Codes", "Traversals"):
        assert f"<h2>{word}</h2>" in text
    assert text.count("data:image/png") == 5 and "48 weights of a network" in text
    assert ">1.5</span></td>" in text and "log predictive" in text


def test_lines_and_a_deep_ladder(tmp_path):
    """Rows that are no pictures are lines; what cannot be traversed is left out."""
    x = np.random.default_rng(0).normal(size=(30, 7))
    ladder = Ladder(
        [layer(3, 7, "normal"), layer(1, 3, "normal"), standard_normal(1)],
        bottom_up([layer(7, 3, "normal"), layer(3, 1, "normal")]),
    )
    text = page(tmp_path / "a", posterior(ladder, x))
    assert "data:image/png" not in text and "each layer below at its mean" in text and "E[h2 | x]" in text
    belief = Ladder([layer(3, 6), top(3)], bottom_up([layer(6, 3)]))
    text = page(tmp_path / "b", posterior(belief, (x[:, :6] > 0).astype(float)), shape=(2, 3))
    assert "Traversals" not in text and text.count("data:image/png") == 4 and "principal components" in text
    without = page(tmp_path / "c", posterior(belief, (x[:, :6] > 0).astype(float), tr.MAP()))
    assert "Drawn from the model" in without and "Reconstructions" not in without
    with pytest.raises(DataError, match=r"\(height, width\), for the 6 numbers of a row; got \(3, 3\)"):
        page(tmp_path / "d", posterior(belief, (x[:, :6] > 0).astype(float)), shape=(3, 3))


def test_levels_are_drawn_by_their_mean():
    ladder = Ladder([layer(2, 3, categorical(4)), standard_normal(2)], bottom_up([layer(12, 2, "normal")]))
    probabilities = np.eye(4)[[0, 3, 2]].reshape(1, 12)
    np.testing.assert_array_equal(ladder_page.pixels(ladder, probabilities), [[0, 3, 2]])
    np.testing.assert_array_equal(ladder_page.pixels(ladder, np.array([[0, 3, 1]])), [[0, 3, 1]])


@pytest.mark.quick
def test_mosaic():
    """Every number in its place, dark where it is high, nothing between pictures."""
    rows = np.arange(12).reshape(3, 4) / 11
    image = imread(io.BytesIO(base64.b64decode(png(ladder_page.mosaic(rows, (2, 2), 2, (0.0, 1.0), "a <title>")))))
    assert image.shape == (5, 5, 4) and np.all(image[2, :, 3] == 0) and np.all(image[3:, 3:, 3] == 0)
    for i, (y, left) in enumerate([(0, 0), (0, 3), (3, 0)]):
        part = image[y : y + 2, left : left + 2, 0]
        np.testing.assert_allclose(part, (1 - rows[i].reshape(2, 2)) * ladder_page.PALEST / 255, atol=1 / 255)


def test_traversals_move_one_unit():
    """E[x | h²] of a linear ladder: the mean of each layer through the next, one unit moved by so many of its sds."""
    ladder = Ladder(
        [layer(2, 3, "normal"), layer(2, 2, "normal"), standard_normal(2)],
        bottom_up([layer(3, 2, "normal"), layer(2, 2, "normal")]),
    )
    theta = jax.tree.map(lambda a: a + 0.1, ladder.initial(jax.random.key(1))["theta"])
    got = np.asarray(ladder_page.traverse(ladder, theta, jnp.array([-2.0, 0.0, 1.0])))
    assert got.shape == (2, 3, 3)
    first, second = (jax.tree.map(np.asarray, theta[name]["layer0"]) for name in ("h1", "x"))
    for unit, (at, step) in ((u, s) for u in range(2) for s in enumerate([-2.0, 0.0, 1.0])):
        h1 = step * np.eye(2)[unit] @ first["weight"][:, :2] + first["bias"][:2]
        np.testing.assert_allclose(got[unit, at], h1 @ second["weight"][:, :3] + second["bias"][:3], atol=1e-12)


@pytest.mark.quick
def test_which_rows_are_pictures():
    assert ladder_page.picture(64, None) == (8, 8) and ladder_page.picture(64, (4, 16)) == (4, 16)
    assert ladder_page.picture(9, None) is None and ladder_page.picture(60, None) is None
    assert ladder_page.limits_of({"a": np.array([0.0, 0.2])}) == (0.0, 1.0)
    low, high = ladder_page.limits_of({"a": np.array([3.0, 3.0])})
    assert low < 3 < high
