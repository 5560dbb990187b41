"""Rollouts that are finished: exported, scored anew, and explained by a model."""
