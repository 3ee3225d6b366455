"""Simulation-based calibration: tests whether a method recovers parameters that were drawn from the model's prior."""
