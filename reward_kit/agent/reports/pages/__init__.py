"""Evaluations as pages to read in a browser: served from the runs folder, or written as files."""
