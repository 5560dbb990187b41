"""The reason why a rollout failed, found without a model: class, first wrong step, differing rows."""
