"""Look up and construct agents, users and models by name."""
