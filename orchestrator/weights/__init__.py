"""Weights from a hub: asked for, chosen, fetched, checked, and kept in the store.

`manager.Weights` is what the daemon's verbs use; the other modules hold one idea each.
"""
