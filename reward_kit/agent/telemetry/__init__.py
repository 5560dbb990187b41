"""OpenTelemetry spans and metrics of an evaluation."""
