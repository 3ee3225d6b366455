"""Adapters from other libraries' models to this library's."""
