"""What is in the folder ``runs/``: bases, records of rollouts, the log of an evaluation and its lock."""
