"""A process forked after something was run says so, where it would have waited for ever."""

import os
import warnings

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core.errors import RunError

pytestmark = pytest.mark.laws


def in_a_fork(work) -> bool:
    """Whether a forked process refuses the work."""
    with pytest.warns(RuntimeWarning, match="os.fork"):  # JAX's own
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, from 3.12 on
        process = os.fork()
    if process == 0:
        try:
            work()
        except RunError as error:
            os._exit(0 if "forked" in str(error) and "spawn" in str(error) else 2)
        finally:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_refuses():
    """Runs and predictions; with the check taken out this test does not end."""
    model = tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["a"], jnp.ones(())))
    rows = tr.Data(np.arange(5.0))
    posterior = tr.infer(model, rows, tr.MAP(), verify=None)
    assert in_a_fork(lambda: tr.infer(model, rows, tr.MAP(), verify=None))
    assert in_a_fork(posterior.predict)
    posterior.predict()  # and this process goes on
