"""Folding for agent loops of other packages. Each has one module, which nothing else of the product imports.

Each module reads the package's messages, calls `contextfold.fold.messages`, and returns the package's objects: messages
that stay are the same objects, without any loss. After any error the messages are returned unchanged.
"""
