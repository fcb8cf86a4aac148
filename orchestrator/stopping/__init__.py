"""Ending engines for good: the stop ladder, and the barrier that holds the next load until the memory is free.

    drain -> stop (SIGTERM, grace, SIGKILL) -> the same without Podman -> forced removal -> wedged
    container gone -> its processes gone -> device memory stable -> the next load

What to do next is said by pure modules (`barrier`), who holds a device's memory by `holders`.
"""
