"""The integrations under the names of the earlier releases."""
