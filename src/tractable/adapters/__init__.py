"""Doors from other libraries' models to ours."""
