"""Rollouts of a stored evaluation, judged again by the reward as it is now."""
