"""The version of the package, for those of its modules that tell it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
