"""Programs that differ have different fingerprints, and a model built twice has one."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import tractable as tr
from tractable.core.errors import ModelError, SettingsError
from tractable.engine.identity import density_trace, kinds_of
from tractable.engine.programs import fingerprint
from tractable.mcmc.metropolis import Proposal
from tractable.posterior.run_identity import functions, identity

pytestmark = pytest.mark.test

LONG = np.arange(3000.0)  # printed with its middle left out
CHANGED = np.where(np.arange(3000) == 1500, -1.0, LONG)


def inside(constant):
    """The constant closed over two programs deep."""
    inner = jax.jit(lambda x: jnp.sum(x * jnp.asarray(constant)))
    return jax.jit(lambda x: inner(x) + 1)


def scanned(constant):
    return lambda x: jax.lax.scan(lambda c, _: (c + jnp.sum(x * jnp.asarray(constant)), None), 0.0 * x, length=3)[0]


def either(constant):
    return lambda x: jax.lax.cond(x > 0, lambda x: jnp.sum(x * jnp.asarray(constant)), lambda x: x, x)


def looped(constant):
    own = jnp.asarray(constant)
    return lambda x: jax.lax.while_loop(lambda c: c < own[7], lambda c: c + 1 + own[1500], x)


def with_vjp(forward, backward):
    @jax.custom_vjp
    def f(x):
        return forward * x

    f.defvjp(lambda x: (forward * x, None), lambda _, g: (jnp.sum(jnp.asarray(backward)) * g,))
    return lambda x: jax.jit(f)(x)


def with_jvp(forward, tangent):
    @jax.custom_jvp
    def f(x):
        return forward * x

    f.defjvp(lambda primals, tangents: (forward * primals[0], tangent * tangents[0]))
    return lambda x: jax.lax.map(f, jnp.stack([x, x])).sum()


def differing():
    """Makers of programs, all of them different."""
    one = {
        f"{make.__name__}, {name}": lambda make=make, c=c: make(c)
        for make in (inside, scanned, either, looped)
        for name, c in {"long": LONG, "changed": CHANGED, "short": LONG[:2000]}.items()
    }
    return one | {
        "vjp": lambda: with_vjp(2.0, [2.0]),
        "vjp, forward": lambda: with_vjp(3.0, [2.0]),
        "vjp, backward": lambda: with_vjp(2.0, [2.5]),
        "jvp": lambda: with_jvp(2.0, 2.0),
        "jvp, tangent": lambda: with_jvp(2.0, 2.5),
        "order": lambda: lambda x: x / (x + 1),
        "order, other": lambda: lambda x: (x + 1) / x,
        "float16": lambda: inside(LONG.astype(np.float16)),
        "int": lambda: inside(LONG.astype(np.int32)),
        "digits": lambda: lambda x: x * 0.12345678901234567,
        "digits, last": lambda: lambda x: x * 0.12345678901234569,
        "key": lambda: lambda x: x + jax.random.normal(jax.random.key(0)),
        "key, other": lambda: lambda x: x + jax.random.normal(jax.random.key(1)),
        "as it is": lambda: lambda x: x,
    }


def test_programs_that_differ_differ_and_equal_ones_are_equal():
    makers = differing()
    first, again = ({name: fingerprint(make(), 0.3) for name, make in makers.items()} for _ in range(2))
    assert len(makers) >= 24 and first == again
    assert len(set(first.values())) == len(makers), sorted(first.items(), key=lambda pair: pair[1])


def test_what_a_program_is_asked_with_is_in_it():
    def f(x, y):
        return jnp.sum(x) - jnp.sum(y)

    single, double = np.zeros(2, np.float32), np.zeros(2)
    found = [fingerprint(f, *example) for example in ((double, double), (single, double), (double, single))]
    found += [fingerprint(f, double[:1], double), fingerprint(lambda x, y: f(y, x), double, double)]
    with jax.enable_x64(False):
        found.append(fingerprint(f, double, double))
    assert len(set(found)) == len(found)


def model(offset):
    shift = jax.jit(lambda mu: mu + jnp.asarray(offset)[0])
    return tr.Model({"mu": dist.Normal(0.0, 2.0)}, lambda params: dist.Normal(shift(params["mu"]), 1.0))


def test_a_model_is_known_by_what_its_nested_programs_hold():
    data = tr.Data(np.array([0.1, 0.4]))
    first, again, other = (
        density_trace(model(np.array([shift, 0.0])), kinds_of(data)).fingerprint for shift in (0.0, 0.0, 3.0)
    )
    assert first == again != other


@pytest.mark.parametrize("nested", [False, True])
def test_models_that_call_python_have_no_checkpoints(tmp_path, nested):
    def call(x):
        return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    call = jax.jit(call) if nested else call
    calling = tr.Model.from_log_density(lambda x: -(call(x) ** 2), 0.0)
    with pytest.raises(ModelError, match=r"checkpoint= expects .*calls Python.* jax.numpy"):
        tr.infer(calling, None, tr.RandomWalk(chains=1, draws=10), checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


DATA = tr.Data(np.array([0.1, 0.4]))


def proposal(width):
    return Proposal(lambda key, n, x: jax.random.normal(key, (n, *x.shape)), lambda z, here: here.position + width * z)


def stepping(rate):
    """A rate that is part of the optimiser's state, not of its update."""
    return optax.inject_hyperparams(optax.sgd)(learning_rate=rate)


def masked(rate):
    """An optimiser of parameters by name."""
    return optax.multi_transform({"a": optax.sgd(rate)}, {"mu": "a"})


# A method from one number that is nothing but a constant within a function.
WITHIN = {
    "adam": lambda c: tr.MAP(optimizer=optax.adam(c)),
    "state": lambda c: tr.EM(optimizer=stepping(c)),
    "by name": lambda c: tr.MeanField(optimizer=masked(c)),
    "schedule": lambda c: tr.SGLD(step_size=tr.schedules.polynomial(c, 20.0)),
    "own schedule": lambda c: tr.SGHMC(step_size=lambda t: c / (1 + t)),
    "proposal": lambda c: tr.RandomWalk(proposal=proposal(c)),
    "bound": lambda c: tr.MonteCarloEM(kernel="rejection", bound=lambda params, y: c + 0 * (y - params["mu"])),
    "kernel": lambda c: tr.MonteCarloEM(kernel=lambda density: tr.kernels.mala(density, c)),
    "member": lambda c: tr.DeepEnsemble(member=tr.MAP(optimizer=optax.adam(c))),
}


@pytest.mark.parametrize("name", WITHIN)
def test_functions_in_settings_are_known_by_what_they_compute(name):
    """They were by their names, so that another rate went on with the run of this one."""
    known = [functions(WITHIN[name](c), model(np.zeros(2)), DATA) for c in (0.1, 0.1, 0.2)]
    assert len(known[0]) == 1 and not any("cannot" in told for told in known[0].values()), known
    assert known[0] == known[1] != known[2]


def test_a_run_with_another_rate_is_another_run():
    run = [identity(model(np.zeros(2)), DATA, WITHIN["adam"](c), 0) for c in (0.1, 0.2)]
    assert run[0] | {"functions": None} == run[1] | {"functions": None} != run[0]
    plain = identity(model(np.zeros(2)), DATA, tr.MAP(), 0)
    assert "functions" not in plain  # and runs without any are those they were


def test_functions_that_cannot_be_known_have_no_checkpoints(tmp_path):
    def called(t):
        return jax.pure_callback(lambda t: np.asarray(0.1), jax.ShapeDtypeStruct((), t.dtype), 1.0 * t)

    with pytest.raises(SettingsError, match=r"SGLD\(step_size=...\) cannot be traced: it calls Python .*leave check"):
        tr.infer(model(np.zeros(2)), DATA, tr.SGLD(step_size=called, batch_size=2), checkpoint=tmp_path / "run")
    with pytest.raises(SettingsError, match=r"SGLD\(step_size=...\) cannot be traced \(TracerBool"):
        chosen = tr.SGLD(step_size=lambda t: 0.1 if t < 5 else 0.01, batch_size=2)
        tr.infer(model(np.zeros(2)), DATA, chosen, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.laws
def test_products_are_computed_in_full_unless_the_user_has_said_otherwise():
    """Of float32 on a GPU: with the setting taken out a traced product asks for no precision."""
    code = (
        "import jax, jax.numpy as jnp, tractable.core.model; print(jax.make_jaxpr(jnp.matmul)(jnp.eye(2), jnp.eye(2)))"
    )
    for asked, shown in ((None, "Precision.HIGHEST,"), ("tensorfloat32", "Precision.HIGH,")):
        environment = {name: value for name, value in os.environ.items() if "MATMUL" not in name}
        environment |= {} if asked is None else {"JAX_DEFAULT_MATMUL_PRECISION": asked}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert shown in done.stdout


def test_a_model_is_the_same_by_any_precision_of_products_and_a_run_is_not():
    def told() -> dict:
        prior = {"a": dist.Normal(jnp.zeros(2), 1.0).to_event(1)}
        model = tr.Model(prior, lambda t, x: dist.Normal(x @ t["a"], 1.0))
        return identity(model, tr.Data(np.zeros(3), given=np.zeros((3, 2))), tr.MAP(), 0)

    with jax.default_matmul_precision("tensorfloat32"):
        rounded = told()
    assert rounded == told() | {"matrix products": "tensorfloat32"}
