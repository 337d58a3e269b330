"""Agents reach the engine over MCP: the tools, defined once, and the transports that carry them."""
