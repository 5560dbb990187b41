"""Records of rollouts: outcome, trajectory, recordings to replay."""
