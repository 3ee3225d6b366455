"""Draws of other programs: right ones are trusted, wrong ones are not, and what does not fit is said."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import tractable as tr
from tractable.cli.app import app
from tractable.cli.judge import stan_draws
from tractable.diagnostics import shape
from tractable.diagnostics.subject import Subject

pytestmark = pytest.mark.test

CHAINS, COUNT = 4, 1000
PAIR = tr.Model({"rate": dist.Gamma(3.0, 2.0), "mean": dist.Normal(jnp.array([1.0, -2.0]), 3.0)})
TWO = tr.Model.from_log_density(
    lambda z: jnp.logaddexp(-((z["z"] - 4.0) ** 2) / 2, -((z["z"] + 4.0) ** 2) / 2), {"z": jnp.zeros(())}
)


def right(seed: int = 0) -> dict[str, np.ndarray]:
    """Exact draws of PAIR."""
    generator = np.random.default_rng(seed)
    mean = np.array([1.0, -2.0]) + 3 * generator.standard_normal((CHAINS, COUNT, 2))
    return {"rate": generator.gamma(3.0, 1 / 2, (CHAINS, COUNT)), "mean": mean}


def slow(share: float) -> np.ndarray:
    """(chain, draw) an autoregression with N(0, 1) as its law, of which neighbours are correlated by ``share``."""
    noise = np.random.default_rng(3).standard_normal((CHAINS, COUNT))
    z = noise.copy()
    for i in range(1, COUNT):
        z[:, i] = share * z[:, i - 1] + np.sqrt(1 - share**2) * noise[:, i]
    return z


def wrong() -> dict[str, tuple[tr.Model, dict[str, np.ndarray]]]:
    """Draws that are wrong in ways that happen."""
    draws, generator = right(), np.random.default_rng(1)
    begin = np.where(np.arange(COUNT) < 150, 40 * 0.97 ** np.arange(COUNT), 0.0)[:, None]
    signs = generator.choice([-4.0, 4.0], (CHAINS, COUNT))
    stuck = np.array([-4.0, -4.0, 4.0, 4.0])[:, None]
    noise = generator.standard_normal((CHAINS, COUNT))
    return {
        "a Jacobian forgotten": (PAIR, draws | {"rate": generator.gamma(2.0, 1 / 2, (CHAINS, COUNT))}),
        "another prior": (PAIR, draws | {"mean": draws["mean"] + np.array([2.0, 0.0])}),
        "warm-up kept": (PAIR, draws | {"mean": draws["mean"] + begin}),
        "half the modes": (TWO, {"z": np.abs(signs) + noise}),
        "unmixed chains": (TWO, {"z": stuck + noise}),
        "slow chains": (PAIR, draws | {"mean": np.array([1.0, -2.0]) + 3 * slow(0.999)[..., None]}),
        "twice as wide": (PAIR, draws | {"mean": 2 * draws["mean"]}),
    }


def test_right_draws_are_trusted():
    posterior = tr.judge(right(), PAIR)
    assert posterior.report().verdict == "trust", posterior.report()
    np.testing.assert_allclose(posterior.mean()["mean"], [1, -2], atol=0.2)
    assert (
        tr.judge({"z": np.random.default_rng(1).choice([-4.0, 4.0], (4, 1000)) + slow(0.0)}, TWO).report().verdict
        == "trust"
    )


@pytest.mark.test("half the modes", "a Jacobian forgotten")
@pytest.mark.parametrize("kind", wrong())
def test_wrong_draws_are_not_trusted(kind):
    model, draws = wrong()[kind]
    assert tr.judge(draws, model).report().verdict != "trust"


def test_agreement_of_chains_is_no_evidence_of_their_density():
    """Where nothing can be compared, chains that this library drew are trusted, and those of others are not."""
    posterior = tr.judge(right(), PAIR, verify=None)
    ours = dataclasses.replace(posterior, method=tr.NUTS())
    found = [shape._shape_check(Subject(each, np.zeros(3), np.eye(3)), None, "") for each in (posterior, ours)]
    assert [check.verdict for check in found] == ["caution", "trust"]


def test_draws_of_arviz_and_of_a_folder(tmp_path):
    """ArviZ's tree, its divergent transitions and a saved folder give the same verdict."""
    posterior = tr.judge(right() | {"divergent__": np.eye(CHAINS, COUNT)}, PAIR)
    assert next(c for c in posterior.report().checks if c.name == "divergences").value == CHAINS
    posterior.save(tmp_path / "saved")
    assert tr.load(tmp_path / "saved", PAIR).report().verdict == posterior.report().verdict == "caution"
    tree = posterior.to_arviz()
    again = tr.judge(tree, PAIR)
    np.testing.assert_allclose(again.values, posterior.values, rtol=1e-5)


def test_draws_of_numpyro():
    def program():
        numpyro.sample("theta", dist.Beta(3.0, 2.0))

    mcmc = numpyro.infer.MCMC(numpyro.infer.NUTS(program), num_warmup=200, num_samples=500, progress_bar=False)
    mcmc.run(jax.random.key(0), extra_fields=("diverging",))
    posterior = tr.judge(mcmc, tr.Model({"theta": dist.Beta(3.0, 2.0)}))
    assert posterior.report().verdict != "reject" and "divergent" in posterior.info


def test_a_density_of_another_program():
    """A log density and its gradient in NumPy, of unconstrained positions."""
    precision = np.array([[2.0, 0.5], [0.5, 1.0]])
    model = tr.Model.from_gradients(lambda z: (-0.5 * z @ precision @ z, -precision @ z), 2)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    draws = np.random.default_rng(0).standard_normal((CHAINS, COUNT, 2)) @ root.T
    assert tr.judge(draws, model).report().verdict == "trust"
    assert tr.judge(2 * draws, model).report().verdict == "reject"


@pytest.mark.parametrize("function", [lambda z: 3.0, lambda z: (1.0, z[:1]), lambda z: (z, z), lambda z: (1.0, z, 2.0)])
def test_a_function_without_a_gradient_is_refused(function):
    with pytest.raises(tr.errors.ModelError, match="a log density and its gradient"):
        tr.Model.from_gradients(function, 2)


@pytest.mark.parametrize(
    ("draws", "words"),
    [
        ({"rate": np.ones((4, 9))}, "no draws of 'mean'"),
        ({"rate": np.ones((4, 9)), "mean": np.ones((4, 9))}, "shape (chain, draw, 2)"),
        ({"rate": np.ones((4, 8)), "mean": np.ones((4, 9, 2))}, "4 chains of 8"),
        ({"rate": -np.ones((4, 9)), "mean": np.ones((4, 9, 2))}, "support of 'rate'"),
        (3, "dict of arrays"),
        ({"posterior": 3}, "dict of arrays"),
    ],
)
def test_what_does_not_fit_is_said(draws, words):
    with pytest.raises(tr.errors.DataError) as caught:
        tr.judge(draws, PAIR)
    assert words in str(caught.value)


@pytest.mark.quick
def test_columns_of_stan_become_arrays(tmp_path):
    """Indices begin with 1, whatever the order of the columns; comments are left out."""
    for chain in (0, 1):
        lines = ["# model = x", "lp__,b.2.1,b.1.1,a", "# Adaptation terminated", f"-1,2{chain},1{chain},7", "-1,0,0,8"]
        (tmp_path / f"{chain}.csv").write_text("\n".join(lines))
    arrays = stan_draws(sorted(tmp_path.glob("*.csv")))
    assert arrays["b"].shape == (2, 2, 2, 1) and arrays["a"].tolist() == [[7, 8], [7, 8]]
    assert arrays["b"][1, 0, :, 0].tolist() == [11, 21]
    (tmp_path / "2.csv").write_text("lp__,a\n1,2")
    with pytest.raises(tr.errors.DataError, match="other columns"):
        stan_draws(sorted(tmp_path.glob("*.csv")))


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.py").write_text(
        "import jax.numpy as jnp, numpyro.distributions as dist, tractable as tr\n"
        "model = tr.Model({'rate': dist.Gamma(3.0, 2.0), 'mean': dist.Normal(jnp.array([1.0, -2.0]), 3.0)})\n"
    )
    np.savez("draws.npz", **right())
    np.savez("wrong.npz", **wrong()["another prior"][1])
    runner = CliRunner()
    done = runner.invoke(app, ["judge", "draws.npz", "--model", "file.py:model", "--out", "page"])
    assert done.exit_code == 0 and "trust" in done.stdout and (tmp_path / "page" / "report.html").is_file()
    assert runner.invoke(app, ["judge", "wrong.npz", "--model", "file.py:model", "-q"]).exit_code == 3
    for words, sentence in (
        (["nothing.nc", "--model", "file.py:model"], "does not exist"),
        (["draws.npz", "--model", "file.py:modle"], "has no 'modle'"),
        (["draws.npz", "--model", "file:model"], "FILE.py:NAME"),
        (["file.py", "--model", "file.py:model"], "no file of draws"),
        (["draws.npz", "--model", "file.py:model", "--out", "page"], "nothing there was changed"),
    ):
        done = runner.invoke(app, ["judge", *words])
        assert done.exit_code == 2 and sentence in done.output
