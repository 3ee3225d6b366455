"""The Python lines of README and of the tour run as they stand."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from tractable.core.batches import whole

pytestmark = pytest.mark.laws

ROOT = Path(__file__).parents[1]
README, TOUR = (
    re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    for page in ("README.md", "docs/tour.md")
)


def run(names: dict[str, Any], number: int, blocks: list[str] = TOUR) -> None:
    """Run a block, after the imports of those before it, as a reader has typed them."""
    imports = [line for block in blocks[:number] for line in block.splitlines() if re.match(r"(import|from) ", line)]
    exec("\n".join(imports), names)
    exec(compile(blocks[number], "a page", "exec"), names)


@pytest.mark.quick
def test_blocks_are_all_run():
    assert (len(README), len(TOUR)) == (2, 8)
    assert README[0] == TOUR[1]  # ``test_table`` runs both
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.test
def test_first_model(capsys):
    names: dict = {}
    run(names, 1, README)
    assert names["posterior"].report().verdict == "trust" and "theta" in capsys.readouterr().out


@pytest.mark.computes
def test_estimator():
    names: dict = {}
    run(names, 0)
    held_out = names["y"][330:]
    assert 0.75 < np.mean((names["lower"] <= held_out) & (held_out <= names["upper"])) <= 1


@pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")  # how the columns are read
def test_table():
    temp = np.linspace(0.0, 30.0, 90)
    bikes = pd.DataFrame({"temp": temp, "weather": np.resize(["sun", "rain", "fog"], 90)})
    bikes["count"] = np.random.default_rng(0).poisson(np.exp(1 + 0.05 * temp))
    names: dict = {"bikes": bikes, "tomorrow": bikes.drop(columns="count").tail(1)}
    run(names, 1)
    table = names["posterior"].summary()
    assert abs(table["mean"]["temp"] - 0.05) < 4 * table["sd"]["temp"] and "weather[rain]" in table.index


@pytest.mark.test
def test_coin(capsys, tmp_path, monkeypatch):
    """The posterior of a coin, its calibration, and a step of its kernel."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"key": jax.random.key(0), "position": {"theta": jnp.zeros(())}}
    run(names, 2)
    assert names["posterior"].report().verdict in ("trust", "caution")
    assert "nuts" in capsys.readouterr().out.lower()
    run(names, 3)
    assert names["calibration"].report().verdict == "trust" and (tmp_path / "ranks.png").exists()
    names["batch"] = whole(names["data"].arrays())
    run(names, 7)
    assert names["info"].step_size > 0


def test_network():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 8))
    names: dict = {"x": x, "y": np.tanh(x[:, 0]) + 0.1 * rng.normal(size=40)}
    run(names, 4)
    assert names["mean"].shape == names["epistemic"].shape == (40,)


def test_latent_variables():
    names: dict = {"key": jax.random.key(0)}
    run(names, 5)
    assert abs(names["found"].mean()["good"] - 0.6) < 4 * names["found"].sd()["good"]


def test_images():
    names: dict = {}
    run(names, 6)
    pixels = names["digits"].mean(0).clip(0.01, 0.99)
    apart = np.mean(np.sum(np.where(names["digits"] > 0.5, np.log(pixels), np.log1p(-pixels)), 1))
    assert names["deep"].elbo(names["digits"][1500:]).mean() > apart + 0.5
