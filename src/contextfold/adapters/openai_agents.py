"""An input filter that folds the requests of the OpenAI Agents SDK.

    await Runner.run(agent, "…", run_config=RunConfig(call_model_input_filter=fold_input))

The items of the run are not changed; only the requests to the model are folded.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from contextfold.adapters.message_folding import OnReceipt, fold_list, fold_or_keep


def fold_input(data: Any) -> Any:
    """A `call_model_input_filter`."""
    return InputFolding()(data)


class InputFolding:
    """The same filter with a function that is called with the receipt of every request."""

    def __init__(self, on_receipt: OnReceipt | None = None) -> None:
        self._on_receipt = on_receipt

    def __call__(self, data: Any) -> Any:
        given = data.model_data
        return fold_or_keep(lambda: self._fold(given), given)

    def _fold(self, given: Any) -> Any:
        items = fold_list(given.input, "openai-responses", model="", tools=None, on_receipt=self._on_receipt)
        return given if items is given.input else dataclasses.replace(given, input=items)
