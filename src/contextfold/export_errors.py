"""The errors of exporting and importing a store. The tree is in `errors`."""

from __future__ import annotations

from contextfold.errors import StoreInvalid


class ExportInvalid(StoreInvalid):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.message = "The export file cannot be used"


class ExportTruncated(ExportInvalid):
    pass


class ExportAltered(ExportInvalid):
    pass


class ExportNewer(ExportInvalid):
    pass


class TargetNotEmpty(StoreInvalid):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.message = "The store is not empty"


class ImportDiffers(StoreInvalid):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.message = "The import is not complete"
