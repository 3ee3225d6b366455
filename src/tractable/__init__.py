"""Approximate Bayesian inference in JAX, with posteriors that say how far they can be trusted.

``__init__.pyi`` lists what the package offers. Each is imported when it is first used: a command that only has to say
that there is no such file does not wait for JAX.
"""

import lazy_loader

from tractable.core import shown

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _html(result: object) -> str:
    """What a notebook shows; pages, with what they draw by, are imported by those who look."""
    from tractable.pages.notebook import html

    return html(result)


shown.makers[:] = [_html]
