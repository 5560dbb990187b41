"""The parts of a ``ToolRegistry``: schemas, checked arguments, execution, and the sessions of its server."""
