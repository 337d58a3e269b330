"""`context fold expand`: prints the archived texts of a branch, or a result that the proxy left out."""

from __future__ import annotations

from contextfold.cli.fold.session_access import (
    OpenStore,
    open_store,
    owner_of,
    session_address,
    utf8_text,
    write,
    write_json,
)
from contextfold.cli.output import plain_lines
from contextfold.cli.parse import Values
from contextfold.errors import EXIT_OK, ArgumentInvalid
from contextfold.fold.tool_arguments import RESULT_PREFIX, RESULT_UNKNOWN
from contextfold.fold.tool_results import entry_result


def run_expand(values: Values) -> int:
    is_raw = "raw" in values
    with open_store(values) as store:
        if values["branch"].startswith(RESULT_PREFIX):
            return _expand_result(store, values, is_raw=is_raw)
        address, state, branch_id = store.find_archived(session_address(values), values["branch"])
        pages = store.pages(address, state, branch_id)
        if "json" in values:
            entries = [entry_result(entry, entry.text, is_part=False) for page in pages for entry in page]
            write_json({"branch_id": branch_id, "entries": entries})
            return EXIT_OK
        # Each page is written before the next one is read, so a long branch needs little memory.
        for page in pages:
            texts = [entry.text for entry in page if entry.text and not entry.undone]
            if not write("".join(f"{text if is_raw else plain_lines(text)}\n" for text in texts)):
                break
    return EXIT_OK


def _expand_result(store: OpenStore, values: Values, *, is_raw: bool) -> int:
    result_id = utf8_text("ID", values["branch"])
    text = store.run(store.reader.store.left_out_text(owner_of(values), result_id))
    if text is None:
        raise ArgumentInvalid("ID", f"{result_id} {RESULT_UNKNOWN}")
    if "json" in values:
        write_json({"result_id": result_id, "text": text})
    else:
        write(f"{text if is_raw else plain_lines(text)}\n")
    return EXIT_OK
