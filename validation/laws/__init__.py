"""Closed forms against computations that do not use them: quadrature, enumeration, flows, sampling, sympy.

One file per family of laws; each has ``checks(seed) -> list[Check]``. `validation.closed_forms` puts them in
order.
"""
