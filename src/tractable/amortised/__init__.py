"""Learning a ladder and its inference network together: θ and q_φ(h | x)."""
