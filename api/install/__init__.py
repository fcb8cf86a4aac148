"""Installing Outrider as a service of the machine, and taking it away again: `outrider install`, `uninstall`."""
