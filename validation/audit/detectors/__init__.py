"""One file a kind of fault.

Each takes the evidence and returns findings, and marks the tokens it accounts for.
"""
