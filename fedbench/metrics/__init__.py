"""Metrics: pure functions on numpy arrays.

Accuracies are fractions here; what is written or printed is in percent.
"""
