"""What this machine is and does: facts, telemetry. Knows nothing of what is made of them."""
