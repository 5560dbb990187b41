"""Agents in other processes and languages, over HTTP."""
