"""Every script under examples/ runs, says what it should and leaves a picture."""

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from sklearn.datasets import load_digits

pytestmark = pytest.mark.laws

EXAMPLES = Path(__file__).parents[1] / "examples"
COMPUTE = ("bandit", "curve", "million_rows")  # run for longer than they compile
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def number(pattern: str, text: str) -> float:
    """The first group of the first match."""
    match = re.search(pattern, text)
    assert match, f"{pattern!r} is not in:\n{text}"
    return float(match.group(1))


def coin(text: str) -> None:
    for name in ("Rejection", "RandomWalk", "MALA", "HMC", "NUTS", "SGLD", "SGHMC"):
        assert abs(number(rf"\n{name} +([\d.]+)", text) - 0.6182) < 0.01
        assert abs(number(rf"\n{name} +[\d.]+ +[\d.]+ +([\d.]+)", text) - 1) < 0.12
    assert abs(number(r"by rejection (-[\d.]+)", text) + 67.4054) < 0.06


def caught(text: str) -> None:
    assert number(r"R-hat +([\d.]+)", text) < 1.01 and number(r"bulk ESS +([\d.]+)", text) > 400
    assert "NUTS on 3 numbers: reject" in text and number(r"reject +modes +(\d+)", text) > 1
    assert number(r"has (\d+) % of its mass", text) > 60 and number(r"there are (\d+) %", text) == 0


def two_modes(text: str) -> None:
    assert number(r"\ngrid +([\d.]+)", text) == pytest.approx(0.487, abs=0.002)
    assert number(r"\nNUTS +[\d.]+ +([\d.]+)", text) < 0.2
    assert re.search(r"\nSGLD, decreasing steps .* (caution|reject)\n", text)  # its chains stay where they start


def breast_cancer(text: str) -> None:
    assert -0.15 < number(r"\nNUTS +(-[\d.]+)", text) < -0.09
    assert number(r"\nNUTS +-[\d.]+ +([\d.]+)", text) > 0.93
    assert abs(number(r"\nNUTS +(-[\d.]+)", text) - number(r"\nMALA +(-[\d.]+)", text)) < 0.005


def million_rows(text: str) -> None:
    for name in ("SGLD", "SGLD, control variates"):
        assert abs(number(rf"\n{name} +[\d,]+ +[+-][\d.]+% +([\d.]+)", text) - 1) < 0.1


def tabular(text: str) -> None:
    assert 0.80 < number(r"\nnetwork +[\d.]+ +([\d.]+)", text) <= 1
    assert number(r"\nlinear +([\d.]+)", text) > 0.25


def curve(text: str) -> None:
    line = r"\n{} +[\d.]+ +[\d.]+ +{} +{}"
    assert number(line.format("MAP", "–", r"([\d.]+)"), text) == pytest.approx(1, abs=0.02)  # a point knows no better
    for name, widens, ratio in (("Bayes by Backprop", 2, 3), ("NUTS", 3, 8), ("Ensemble of five", 1.05, 5)):
        assert number(line.format(name, r"[\d.]+", r"([\d.]+)"), text) > widens
        assert number(line.format(name, r"([\d.]+)", r"[\d.]+"), text) > ratio


def bandit(text: str) -> None:
    def lines(agent: str) -> np.ndarray:
        found = re.findall(rf"\n{agent} +[\d.]+ +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)", text)
        assert len(found) == 2, text
        return np.array(found, float).mean(0)  # over learning rates

    _, _, _, first, last, right = lines("Thompson")
    assert last < first / 2
    assert right > 0.88
    _, least, *_ = lines("5 %-greedy")
    assert least > 2000 * number(r"5 % of that ([\d.]+)", text)  # what it tries at random costs that much, expected


def cook(text: str) -> None:
    for name, truth in {"good": 0.65, "bad": 4.0, "lift": 3.5, "sd": 1.2}.items():
        line = rf"\n{name} +[\d.]+ +{{}} +{{}} +{{}} +{{}} +{{}}"
        pattern = r"[+-]?[\d.]+"
        estimate, error, score, mean, sd = (
            number(line.format(*[rf"({pattern})" if i == at else pattern for i in range(5)]), text) for at in range(5)
        )
        assert abs(score) < 5.33
        assert score == pytest.approx((estimate - truth) / error, abs=0.05)
        assert abs(mean - estimate) < error  # NUTS tells the same story
        assert sd / error == pytest.approx(1, abs=0.3)
    assert "EM: trust, 4 of 4" in text
    assert "NUTS: reject" not in text
    assert number(r"exchanged log p\(x \| θ\) is (-[\d.]+)", text) == pytest.approx(
        number(r"instead of (-[\d.]+)", text), abs=0.01
    )
    assert abs(number(r"true one on ([\d.]+)%", text) - number(r"the model says ([\d.]+)%", text)) < 6
    for count, tolerance in ((10, 6), (100, 0.8), (1000, 0.25)):
        found = re.search(rf"\n +{count} +(-[\d.]+) +[\d.]+ +(-[\d.]+) +(-[\d.]+)", text)
        assert found, text
        each, jensen, together = map(float, found.groups())
        assert abs(each - jensen) < tolerance
        assert together < 20 * each or together < -100  # hopeless at every K


def digits_mixture(text: str) -> None:
    line = r"\n{} +{} +[\d,]+ +-[\d.]+ +{} +-[\d,]+ +{}"
    held_out = r"(-[\d.]+)", r"[\d.]+"
    full, diagonal = (number(line.format(*of, *held_out), text) for of in (("full", 10), ("diagonal", 30)))
    assert -68 < full < -63
    assert diagonal < full - 1
    for of, least in ((("full", 10), 0.65), (("diagonal", 30), 0.75)):
        assert least < number(line.format(*of, r"-[\d.]+", r"([\d.]+)"), text) <= 1
    assert "Drawn from 10 full covariances" in text


def autoencoder(text: str) -> None:
    lines = {name: rf"\n{name} +{{}} +{{}} " for name in ("ELBO", "20 draws")}
    bounds = {name: number(line.format(r"-[\d.]+", r"(-[\d.]+)"), text) for name, line in lines.items()}
    elbos = {name: number(line.format(r"(-[\d.]+)", r"-[\d.]+"), text) for name, line in lines.items()}
    assert -22 < bounds["ELBO"] < bounds["20 draws"] < -17
    assert elbos["20 draws"] < elbos["ELBO"] < bounds["ELBO"]
    losses = [number(rf"\n{name} +([\d.]+)", text) for name in ("its own frequency", "imputed", "reconstructed")]
    assert losses[0] > losses[1] + 0.02 > losses[2] + 0.04


def belief_network(text: str) -> None:
    independent = number(r"held out: (-[\d.]+)", text)
    for name in ("NVIL", "wake–sleep", "reweighted"):
        line = rf"\n{name} +-[\d.]+ +-[\d.]+ +{{}} +{{}} "
        bound = number(line.format(r"-[\d.]+", r"(-[\d.]+)"), text)
        elbo = number(line.format(r"(-[\d.]+)", r"-[\d.]+"), text)
        assert independent + 2.5 < elbo < bound < -17


def collapse(text: str) -> None:
    x = np.asarray(load_digits(return_X_y=True)[0])[:1000] / 16
    covariance = np.cov(x.T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    elbos, laws = [], []
    right = values[:-20].mean()
    for name, variance, tolerance in (("σ = 1", 1, 0.02), ("σ = 0.5", 0.25, 0.05), ("σ learnt", right, 0.4)):
        found = re.search(rf"\nlinear, {name} +([\d.]+) +(\d+) +\d+ +([\d.]+) +[\d.]+ +(-?[\d.]+) .* (\w+)\n", text)
        assert found, text
        sigma, active, kl, elbo = map(float, found.groups()[:4])
        assert sigma == pytest.approx(np.sqrt(variance), rel=0.02)
        assert active == min(20, np.sum(values > variance))
        axes, more = vectors[:, -20:], np.maximum(values[-20:] - variance, 0)
        model = variance * np.eye(64) + axes * more @ axes.T  # of probabilistic PCA at this noise
        assert kl == pytest.approx(np.log1p(more / variance).sum() / 2, abs=0.01 + tolerance / 4)
        laws.append(-(np.linalg.slogdet(2 * np.pi * model)[1] + np.trace(np.linalg.solve(model, covariance))) / 2)
        elbos.append(elbo)
        assert laws[-1] - tolerance < elbo < laws[-1] + 0.02
        assert (found[5] == "reject") == (variance == 1)
    assert elbos[2] - elbos[0] == pytest.approx(laws[2] - laws[0], abs=0.4)  # some 90 nats
    assert "The report at σ = 1, reject: Training collapsed: " in text
    away = r"\nlinear, {} +reconstructed ([\d.]+), drawn ([\d.]+)"
    for name, low, high in (("σ = 1", 0, 0.02), ("σ learnt", 0.2, 0.3)):  # from the mean digit, as digits are by 0.27
        found = re.search(away.format(name), text)
        assert found, text
        assert all(low <= float(group) < high for group in found.groups())


@pytest.mark.parametrize("script", SCRIPTS)
def test_example(script: str, tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / f"{script}.py", "--quick", "--out", tmp_path]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    if script in COMPUTE:
        environment.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    picture = matplotlib.image.imread(tmp_path / f"{script}.png")
    assert min(picture.shape[:2]) > 500
    assert picture[..., :3].std() > 0.02  # something is drawn on it
    globals()[script](done.stdout)
