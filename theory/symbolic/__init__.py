"""Symbolic derivations of every coefficient the laws use, from the definitions.

Nothing here is needed to run an experiment, and nothing outside imports it but tests and checks: sympy comes
with the extra "toy". Each module derives what a numeric module of theory/ states; the tests evaluate both at
the same numbers.
"""
