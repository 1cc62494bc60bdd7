"""Django settings, one module per kind of installation: local, production, test."""
