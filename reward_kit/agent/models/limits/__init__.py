"""Limits of providers: calls in flight, requests and tokens per minute, pauses and outages; and retries."""
