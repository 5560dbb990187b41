"""Reports of evaluations: text for people, JSON for programs."""
