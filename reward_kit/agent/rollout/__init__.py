"""One rollout: its state, its turns, its reward."""
