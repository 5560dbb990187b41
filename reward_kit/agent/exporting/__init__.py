"""The rollouts of a stored evaluation as lines of a dataset: conversation, tools, reward."""
