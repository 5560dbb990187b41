"""One module per command; ``reward_kit.cli`` imports it when the command runs."""
