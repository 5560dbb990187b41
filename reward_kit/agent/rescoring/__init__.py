"""Judging the rollouts of a stored evaluation again, by the reward as it is now."""
