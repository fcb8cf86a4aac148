"""The shipped catalogue itself: TOML files, one kind of thing each. `orchestrator.catalogue` reads them."""
