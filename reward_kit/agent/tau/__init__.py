"""tau-bench and tau2-bench."""
