"""A registry's tools over HTTP and MCP."""
