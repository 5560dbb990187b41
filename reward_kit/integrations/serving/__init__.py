"""Episodes of a bundle over HTTP: in our own form, and in those of OpenEnv and NeMo Gym."""
