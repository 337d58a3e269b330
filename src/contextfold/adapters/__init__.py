"""Folding for agent loops of other packages: one module for each, which nothing else of the product imports.

Each module reads the package's own messages, has `contextfold.fold.messages` decide, and gives the package's own
objects back: those that stay are the same objects, and nothing in them is lost. Whatever goes wrong, the messages pass
as they came.
"""
