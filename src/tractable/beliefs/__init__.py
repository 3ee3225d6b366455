"""Results of methods (beliefs), and the normal families of q."""
