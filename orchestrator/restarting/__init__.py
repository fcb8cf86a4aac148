"""What follows when an engine fails: the back-off, the ladder, and the ledger that outlives the daemon.

`rule` decides (pure), `choice` picks the rung (pure), `standing` is what is known of a deployment's failures,
`ledger` keeps it in SQLite, `climber` carries it out for one deployment.
"""
