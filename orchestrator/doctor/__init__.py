"""The doctor: what is wrong with this machine, said as finding, evidence and a command that mends it.

`collect` looks at the machine (and may wait), the rules judge what was seen (and do nothing else):

    report = judge(collect(look), rules.load())
"""
