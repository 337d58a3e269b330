"""MCP without a transport: messages, both protocol eras, the tools."""
