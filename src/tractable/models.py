"""Models that come with the library. ``models.pyi`` lists them; each is imported when it is first used."""

from tractable.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
