"""The servers: MCP over stdio and HTTP, the proxy, hooks, the JSON API, and the dashboard."""
