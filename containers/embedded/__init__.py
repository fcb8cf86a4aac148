"""The embedded engine: llama.cpp for the CPU in an image of our own, built without a registry."""
