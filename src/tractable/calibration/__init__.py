"""Simulation-based calibration: does a method recover parameters that the model itself has drawn?"""
