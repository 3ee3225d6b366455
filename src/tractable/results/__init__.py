"""What comes back from inference: posteriors, predictions, folders."""
