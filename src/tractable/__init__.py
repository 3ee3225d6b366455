"""Approximate Bayesian inference in JAX, with posteriors that say how far they can be trusted.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so that a command that ends with an
error, for example because a file does not exist, need not wait until JAX is imported.
"""

from tractable.core import shown
from tractable.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)


def _html(result: object) -> str:
    """The HTML that a notebook shows for a result; the modules that make pages are imported only when it is needed."""
    from tractable.pages.notebook import html

    return html(result)


shown.makers[:] = [_html]
