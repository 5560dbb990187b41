"""Evaluations of the same rows side by side, and replays beside their recordings."""
