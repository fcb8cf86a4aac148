"""The embedded engine and its test models, run for real."""
