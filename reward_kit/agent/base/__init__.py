"""Plain types and helpers that know nothing of bundles, rollouts or models."""
