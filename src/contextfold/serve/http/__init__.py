"""The HTTP server: sockets, admission, routes."""
