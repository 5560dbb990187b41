"""FastWorkflow's agent under test; docs/fastworkflow.md is the way from nothing to a score."""
