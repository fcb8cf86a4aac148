"""The story of a deployment, as a person wants to hear it: what happened, from which evidence, what was done, what
comes next, and what they can do.

It is made of the journal; there is no second log.
"""
