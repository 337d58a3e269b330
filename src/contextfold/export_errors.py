"""The errors of exporting and importing a store. The tree is in `errors`."""

from __future__ import annotations

from contextfold.errors import StoreInvalid


class ExportInvalid(StoreInvalid):
    MESSAGE = "The export file cannot be used"


class TargetNotEmpty(StoreInvalid):
    MESSAGE = "The store is not empty"


class ImportDiffers(StoreInvalid):
    MESSAGE = "The import is not complete"
