"""The terms that all methods share: models, rows, kernels, objectives and beliefs (the results of methods)."""
