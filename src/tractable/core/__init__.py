"""The words of the library: a model, its rows, a kernel, an objective, and what a method learns."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["approximations", "errors", "schedules"])
