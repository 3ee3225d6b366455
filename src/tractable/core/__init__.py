"""The terms that all methods share: models, rows, kernels, objectives and beliefs (the results of methods)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["approximations", "errors", "schedules"])
