"""Results of inference: posteriors, predictions, and folders of saved runs."""
