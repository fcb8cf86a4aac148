"""Where the doctor's values come from: one module a subject, each a function of a `Look` that yields values.

A source that cannot be read raises `Unseen` with the reason. None changes anything on the machine.
"""
