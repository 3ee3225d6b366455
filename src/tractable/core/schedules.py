"""Step sizes as functions of absolute time t = 0, 1, 2, …: ``schedule(t) -> ε_t``."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from tractable.core.errors import SettingsError

Schedule = Callable[[jax.Array], jax.Array]


def constant(step_size: float | jax.Array) -> Schedule:
    """ε_t = ``step_size``, positive and finite."""
    if isinstance(step_size, int | float) and not (step_size > 0 and math.isfinite(step_size)):
        raise SettingsError(f"A step size is a positive finite number; got {step_size}.")
    return lambda t: jnp.asarray(step_size, jnp.result_type(float))


def polynomial(a: float, b: float, gamma: float = 0.55) -> Schedule:
    """ε_t = a (b + t)^−γ (Welling & Teh 2011, section 4).

    In SGLD the drift is ε/2 times the gradient and the noise variance is ε, so ε is twice BlackJAX's step size.

    Args:
        a: scale, > 0.
        b: offset in steps, > 0. The step size falls only once t is of the order of b: with b = 10⁸ and 10⁶ steps the
            step size is nearly constant, and the bias that it causes in the draws hardly falls.
        gamma: decay γ in (½, 1], where Σ ε_t = ∞ and Σ ε_t² < ∞.

    Raises:
        SettingsError: a value is out of its range.

    >>> round(float(polynomial(0.1996, 231.07, 0.55)(0)), 4)
    0.01
    """
    if not (a > 0 and b > 0 and math.isfinite(a) and math.isfinite(b)):
        raise SettingsError(f"polynomial(a, b, gamma) needs a > 0 and b > 0; got a = {a}, b = {b}.")
    if not 0.5 < gamma <= 1:
        raise SettingsError(
            f"polynomial(a, b, gamma) needs gamma in (1/2, 1], where the sum of the steps diverges and the "
            f"sum of their squares does not; got gamma = {gamma}. For a constant step use constant(step)."
        )
    first = a * b**-gamma
    # b + t is written as b (1 + t/b), as 10⁸ + 1 is 10⁸ in float32.
    return lambda t: first * jnp.exp(-gamma * jnp.log1p(jnp.asarray(t, jnp.result_type(float)) / b))


def polynomial_between(first: float, last: float, steps: int, gamma: float = 0.55) -> Schedule:
    """The polynomial schedule from ``first`` at t = 0 to ``last`` at t = ``steps``."""
    if not first > last > 0:
        raise SettingsError(f"polynomial_between needs first > last > 0; got first = {first}, last = {last}.")
    if steps < 1:
        raise SettingsError(f"polynomial_between needs at least one step; got steps = {steps}.")
    b = steps / ((first / last) ** (1 / gamma) - 1)
    return polynomial(first * b**gamma, b, gamma)


def cyclical(peak: float | jax.Array, length: int | jax.Array) -> Schedule:
    """ε_t = (peak/2) [cos(π (t mod length)/length) + 1] (Zhang et al. 2020, eq. 1).

    Each cycle of ``length`` steps starts with large steps, which find a mode, and ends with small steps, which sample
    from it.
    """
    if isinstance(peak, int | float) and not peak > 0:
        raise SettingsError(f"cyclical(peak, length) needs peak > 0; got {peak}.")
    if isinstance(length, int) and length < 2:
        raise SettingsError(f"cyclical(peak, length) needs cycles of at least 2 steps; got {length}.")
    return lambda t: 0.5 * peak * (jnp.cos(jnp.pi * (t % length) / length) + 1)
