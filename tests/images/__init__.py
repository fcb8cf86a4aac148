"""Images on their way here: pulls, pins, pull at start."""
