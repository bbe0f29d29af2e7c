"""The version, which imports nothing."""

__version__ = "0.2.0"
