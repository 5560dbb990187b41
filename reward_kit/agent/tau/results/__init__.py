"""Results files of tau-bench and tau2-bench: replayed on a bundle, and written from an evaluation."""
