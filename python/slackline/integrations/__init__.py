"""Plug-ins for other libraries. Each module imports its library, so none is imported here."""
