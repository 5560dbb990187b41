"""Running an evaluation: schedule, executors, progress, signals."""
