"""Built-in examples with data, exact posteriors of conjugate models, and targets on which methods fail."""
