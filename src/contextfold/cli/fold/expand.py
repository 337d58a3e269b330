"""`context fold expand`: a branch's texts as the archive has them, and nothing else."""

from __future__ import annotations

from contextfold.cli.fold.session_access import Values, at_desk, place_of, tell, tell_json
from contextfold.cli.fold.show import pages_of, wanted
from contextfold.cli.output import plain
from contextfold.cli.terminal import screen
from contextfold.error_codes import EXIT_OK
from contextfold.fold.tool_results import entry_result


def run(values: Values) -> int:
    place = place_of(values)
    with at_desk(values) as desk:
        state = desk.look(place)
        branch_id = wanted(desk, place, state, values["branch"])
        pages = pages_of(desk, place, state, branch_id)
        if "json" in values:
            entries = [entry_result(entry, entry.text, is_part=False) for page in pages for entry in page]
            tell_json({"branch_id": branch_id, "entries": entries})
            return EXIT_OK
        is_drawn = screen().is_drawn
        for page in pages:  # each as it is read, however long the branch is
            texts = [entry.text for entry in page if entry.text and not entry.undone]
            if not tell("".join(f"{_drawn(text) if is_drawn else text}\n" for text in texts)):
                break
    return EXIT_OK


def _drawn(text: str) -> str:
    """What a terminal may get of it: lines and tabs, and nothing that draws."""
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))
