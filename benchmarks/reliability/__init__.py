"""Behaviour under overload, faults, hostile input and long runs."""
