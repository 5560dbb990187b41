"""Metrics, failure classes and results of rollouts."""
