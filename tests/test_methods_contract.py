"""Every public method keeps the contract."""

import dataclasses

import numpy as np
import numpyro.distributions as dist
import pytest
from contract_method import CLOSE, MODEL, X, Y, check_method, numbers, small_groups

import tractable as tr
from tractable.methods import METHODS
from tractable.tools import schedules

pytestmark = pytest.mark.filterwarnings("ignore::tractable.tools.errors.TractableWarning")

EXACT = {"chains": 2, "draws": 45, "warmup": 60}
NOISY = {**EXACT, "thin": 2, "batch_size": 8}
CLIMB = {"draws": 45, "samples": 4, "steps": 400, "solver": "stochastic"}
METHOD = {
    "mle": tr.MLE(),
    "map": tr.MAP(starts=2),
    "map adam": tr.MAP(optimizer="adam", steps=60),
    "map adam minibatch": tr.MAP(optimizer="adam", batch_size=8, steps=60),
    "rejection": tr.Rejection(chains=2, draws=45),
    "random-walk": tr.RandomWalk(**EXACT),
    "mala": tr.MALA(**EXACT, thin=2),
    "hmc": tr.HMC(**EXACT, leapfrogs=4),
    "nuts": tr.NUTS(**EXACT),
    "sgld": tr.SGLD(**NOISY),
    "sgld constant": tr.SGLD(**NOISY, step_size=0.01, preconditioner="dense"),
    "sgld polynomial": tr.SGLD(**NOISY, step_size=schedules.polynomial(0.1, 20.0)),
    "sgld rmsprop": tr.SGLD(**NOISY, preconditioner="rmsprop"),
    "sgld cycles": tr.SGLD(**NOISY, cycles=3),
    "sgld control variates": tr.SGLD(**NOISY, gradient="control_variates"),
    "sgld correct": tr.SGLD(**NOISY, step_size=0.005, correct=True),
    "sghmc": tr.SGHMC(**NOISY),
    "laplace": tr.Laplace(draws=45),
    "laplace diagonal": tr.Laplace(draws=45, structure="diagonal", optimizer="adam", steps=60),
    "meanfield": tr.MeanField(**CLIMB),
    "meanfield score": tr.MeanField(**CLIMB, gradient="score", control="fitted", start="random", starts=2),
    "meanfield forward": tr.MeanField(**CLIMB, divergence="forward", batch_size=8, tempering=(4.0,)),
    "fullrank": tr.FullRank(**CLIMB, gradient="path"),
    "lowrank": tr.LowRank(**CLIMB, rank=1),
    "bbb": tr.BayesByBackprop(draws=45, batch_size=8, epochs=80),
    "bbb geometric": tr.BayesByBackprop(draws=45, batch_size=8, epochs=80, kl_weights="geometric", start="map"),
    "ensemble": tr.DeepEnsemble(size=2, member=tr.MAP(starts=2)),
    "ensemble of chains": tr.DeepEnsemble(size=2, member=tr.SGLD(**NOISY, step_size=0.01)),
}
VARIANTS = {
    name for name in METHOD if name.startswith(("sgld ", "map adam ", "laplace ", "meanfield ", "bbb ", "ensemble "))
} - {"sgld rmsprop"}


@pytest.mark.parametrize("name", METHOD)
def test_contract(name):
    check_method(METHOD[name], variant=name in VARIANTS)


# These learn what the contract's regression has not, a z: ``test_em_method`` and its neighbours hold them to as much.
LATENT = {"em", "online-em", "monte-carlo-em", "cavi"}
# These learn a ladder of layers: ``test_nvil_method`` and its neighbours, and ``test_saving_ladders``.
LADDER = {"autoencoding", "importance-weighted", "nvil", "vimco", "wake-sleep", "reweighted-wake-sleep"}


def test_every_method_is_here():
    assert {method.label for method in METHOD.values()} == set(METHODS) - LATENT - LADDER


# Where warm-up pools chains (step size, covariance, modes), a chain depends on its companions by design;
# without warm-up it may not.
ALONE = {
    "rejection": tr.Rejection(draws=20),
    "random-walk": tr.RandomWalk(draws=20, warmup=0, preconditioner=None),
    "nuts": tr.NUTS(draws=20, warmup=0),
    "sgld": tr.SGLD(draws=20, warmup=10, thin=1, batch_size=8, step_size=0.01, start="random"),
}


@pytest.mark.parametrize("name", ALONE)
def test_chain_does_not_depend_on_its_companions(name):
    with small_groups():
        four, two, one = (
            numbers(tr.infer(MODEL, tr.Data(Y, X), dataclasses.replace(ALONE[name], chains=c))) for c in (4, 2, 1)
        )
    np.testing.assert_allclose(four[:2], two, atol=CLOSE)
    np.testing.assert_allclose(four[:1], one, atol=CLOSE)


COIN = tr.Model({"theta": dist.Beta(2.0, 2.0)}, lambda params: dist.Bernoulli(params["theta"]))


@pytest.mark.parametrize("name", ["map", "sgld"])
def test_integer_data(name):
    """Whole numbers and truth values are data like others."""
    flips = np.random.default_rng(0).integers(0, 2, 24)
    with small_groups():
        drawn = [
            numbers(tr.infer(COIN, tr.Data(flips.astype(kind)), METHOD[name])) for kind in (np.int32, np.int8, bool)
        ]
    for other in drawn[1:]:
        np.testing.assert_allclose(other, drawn[0], atol=CLOSE)
    assert drawn[0].dtype == np.float64
