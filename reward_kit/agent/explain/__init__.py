"""A model's judgement of failed rollouts (``--explain``): who was at fault, how, and in one sentence why."""
