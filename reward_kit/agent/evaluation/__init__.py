"""An evaluation: plan, executors (in process, workers, Ray), progress, signals, telemetry."""
