"""Admission limits of LLM servers and gateways, from objectives and a measured capacity.

:mod:`admission.capacity` reads what a server sustains, :mod:`admission.plan` computes the limits,
and :mod:`admission.rendering` writes them for Triton, engines and gateways.
"""
