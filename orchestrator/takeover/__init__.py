"""Taking a model over from a systemd unit: the unit stops, ours starts, and if ours is not ready in its time the unit
is started again.

    what systemd says (units) -> what it would be here (orchestrator.importing) -> one act after the other (course)

Nothing is stopped before it is known that there is a plan for it.
"""
