"""Installing, the units, and what the processes tell the service manager."""
