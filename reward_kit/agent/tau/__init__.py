"""Results files of tau-bench: written from an evaluation, and replayed on a bundle."""
