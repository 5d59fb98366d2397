"""From a plan to evidence: run what is missing, keep it in the store, compare the runs with each other.

One file per engine; each imports its engine only when it is called.
"""
