"""Recognises what the user said where a host has put it into its own texts: into markup, and into results of tools.

Hosts give a model the user's refusals ("… the user said: …"), answers to questions and approvals of plans as results of
tools. Such a result stays, whatever is folded around it. It is recognised by its tool, by the phrases that hosts use,
and by what a failure or a short result says of the user. Where it is doubtful, it counts as the user's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from contextfold.fold.messages.facts import block_members, items_of

# The markup of texts that hosts add to a result for the model. Users do not write it.
_HOST_MARKUP = "system-reminder|system_reminder|environment_details|new-diagnostics"
_HOST_NAMES = tuple(_HOST_MARKUP.split("|"))
_HOST_ENDS = tuple(f"</{name}>" for name in _HOST_NAMES)
_HOST_TEXT = re.compile(rf"(?:\s*+<({_HOST_MARKUP})>(?:(?!</\1>)[\s\S])*+</\1>)++\s*+")
# A host may quote a message of its user in that markup: "The user sent the following message: …".
_QUOTES_USER = re.compile(
    r"(?i)\buser(?:'s|s)?\b[^.\n]{0,60}\b(?:sent|sa(?:id|ys)|wr[oi]te|typed|ask|message|prompt)"
    r"|\b(?:message|prompt|request|words)s?\b[^.\n]{0,40}\buser"
)

# The tools with which each host asks its user, in lowercase, without separators. Their results are the user's.
_ASKING_TOOLS: Mapping[str, tuple[str, ...]] = {
    "Claude Code": ("askuserquestion", "exitplanmode"),
    "Codex": ("requestuserinput", "requestpermissions"),
    "Gemini CLI": ("askuser", "exitplanmode"),
    "OpenCode": ("question", "planexit"),
    "Cline": ("askfollowupquestion", "planmoderespond", "attemptcompletion"),
    "others": (
        *("askquestion", "askhuman", "humaninput", "userinput", "promptuser", "elicit", "waitforuser", "waitforreply"),
        *("userfeedback", "interactivefeedback", "requestfeedback", "requestapproval", "requestconfirmation"),
    ),
}
_ASKING = re.compile("|".join(sorted({name for names in _ASKING_TOOLS.values() for name in names})))
_SEPARATORS = re.compile(r"[^a-z0-9]+")
# The beginnings of results in which each host tells what its user said or decided.
_BEGINNINGS: Mapping[str, tuple[str, ...]] = {
    "Claude Code": (
        *("The user doesn't want to", "The user wants to", "The user answered", "The user responded", "The user said"),
        *("The user did not answer", "The user declined", "The user chose", "User has answered", "User has approved"),
        *(
            "Your questions have been answered",
            "The agent proposed a plan that was rejected",
            "[Request interrupted by",
        ),
    ),
    "Codex": (
        *("exec command rejected by user", "patch rejected by user", "user rejected", "user cancelled"),
        *("aborted by user", '{"answers":'),
    ),
    "Gemini CLI": (
        *("User denied", "User cancelled", "User did not allow", "[Operation Cancelled]"),
        *("Plan approved", "Plan rejected"),
    ),
    "OpenCode": ("The user rejected", "The user dismissed", "User has answered", "User rejected"),
    "Cline": ("The user denied", "The user provided", "<answer>", "<user_message>", "<feedback>"),
    "Goose": ("The user has declined",),
    "servers of MCP": ('{"action":"accept"', '{"action":"decline"', '{"action":"cancel"'),
    "Vercel's AI SDK": ('{"type":"execution-denied"',),
}
_BEGINS = re.compile(
    r"[\s>#*\"'(]*(?:error:\s*)?(?:"
    + "|".join(re.escape(each.lower()) for each in sorted({each for those in _BEGINNINGS.values() for each in those}))
    + ")"
)
# "… the user said:", "… the user provided the following feedback:" near the beginning or the end of any result, and the
# markup in which Cline gives such words. Each pattern begins with a literal, for which `re` searches long texts fast.
_SAYS = (
    re.compile(r"the user (?:also )?(?:said|says|answered|responded|replied|wrote|added|typed)\b[^\n]{0,80}:"),
    re.compile(
        r"user\b[^.\n]{0,40}\b(?:provided|gave|made|modified) "
        r"(?:(?:the|this) )?(?:following\b|feedback\b|`)[^\n]{0,80}:"
    ),
    re.compile(r"\n<(?:feedback|user[-_](?:feedback|input|message|response))>"),
)
# What hosts without a row in these tables say of their user, in a short result or near the ends of a long one.
_TELLS = re.compile(
    r"user (?:(?:has|have|had|did|does|is|was|also|just|not|doesn't|didn't|hasn't|would|\w{2,12}ly) ){0,3}"
    r"(?:said|says|wants?|reject|declin|den(?:y|ied)|cancel|skip|answer|respon|repl(?:y|ied)|cho(?:se|ose)|approv|accept"
    r"|allow|modif|instruct|clarif|interrupt|stopp|abort|dismiss|request|comment|wrote|prefers|decided|selected|picked"
    r"|confirm|asked|told|submitted|typed|entered|edited|provided|like you|left (?:a|the|this|these) )"
    r"|user(?:'s)? (?:answer|choice|comment|decision|feedback|input|instruction|message|note|reply|response)s?"
    r"(?: is\b|\W{0,3}:)"
    r"|(?:answer|comment|feedback|instruction|message|note|reply|response)s? from (?:the |your )?user\b"
    r"|(?:reject|declin|deni|cancel|abort|interrupt|stopp|skipp|dismiss|approv|answer|modifi|request|edit)\w{2,4} "
    r"by (?:the |your )?user\b"
)
# What a failure says of the user.
_DECIDES = re.compile(
    r"\buser\b[^.\n]{0,60}\b(?:said|wants?|reject|declin|den(?:y|ied)|cancel|answer|respon|repl|chose|approv|instruct"
    r"|feedback|clarif|interrupt|stop|abort|dismiss|message)|\bby (?:the )?user\b|\buser feedback\b"
    r"|\bpermission to use\b"
)
# How a program's failure begins. Claude Code passes on as the whole of a failed result, without any mark, what a user
# has said to a program around it that asks for permissions.
_FAULT = re.compile(
    r"[\[{<]|\W*(?:exit (?:code|status)|traceback|fatal|failed|could not|couldn't|cannot|unable|invalid|unknown"
    r"|\S*(?:error|exception)\b|\w+ (?:error|failed)\b|e[a-z]{3,}: "
    r"|.{0,200}(?:does not exist|not found|timed out))"
)
# This many characters at the beginning of a result, and as many at its end, are searched.
_SEARCHED_CHARS = 4_000
# A result is short up to this length. So much of the beginning and of the end of a longer one is searched like it.
_SHORT_CHARS, _ENDS_CHARS = 1_000, 200


def is_host_text(text: object) -> bool:
    """Whether a text consists of the host's markup and does not quote the user."""
    if not isinstance(text, str) or not text.lstrip().startswith("<"):
        return False
    return _HOST_TEXT.fullmatch(text) is not None and _QUOTES_USER.search(text) is None


def quotes_user(text: object) -> bool:
    """Whether a host's text quotes a message of the user."""
    return isinstance(text, str) and _QUOTES_USER.search(text) is not None


def has_user_words(content: object, tools: str, *, failed: bool) -> bool:
    """Whether a result has what the user said. `tools` names its tool, and those that this one has called."""
    if _ASKING.search(_SEPARATORS.sub("", tools.lower())) is not None:
        return True
    error = content.get("error") if isinstance(content, Mapping) else None
    failed = failed or error is not None
    # A client may wrap the failures of our own tools in its words.
    if failed and "context_" not in tools and _is_bare(content if error is None else error):
        return True
    return any(_tells_of_user(text, failed=failed) for text in _texts_in(content))


def _is_bare(content: object) -> bool:
    """Whether a failed result may be nothing but what the user said: a short text that no program would begin so."""
    blocks = items_of(content)
    text = content if blocks is None else "\n".join(str(block_members(each).get("text", "")) for each in blocks)
    own = text[: own_length(text)].strip().lower() if isinstance(text, str) else ""
    return 0 < len(own) <= _SHORT_CHARS and _FAULT.match(own) is None


def _texts_in(content: object) -> Iterator[str]:
    """All texts of a result, however deep: servers of MCP put theirs into lists and into `structuredContent`."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        else:
            waiting += items_of(value) or block_members(value).values()


def _tells_of_user(text: str, *, failed: bool) -> bool:
    if "</" in text and (quotes_user(text[own_length(text) :]) or any(map(quotes_user, _host_blocks(text)))):
        return True
    begin = text[:_SEARCHED_CHARS].lower().replace("’", "'")
    # Some hosts write JSON with spaces.
    head = "".join(begin[:_ENDS_CHARS].split()) if begin.startswith("{") else begin
    if _BEGINS.match(head) is not None or (failed and _DECIDES.search(begin) is not None):
        return True
    end = text[-_SEARCHED_CHARS:].lower().replace("’", "'") if len(text) > _SEARCHED_CHARS else ""
    searched = f"\n{begin}\n{end}"
    if "user" not in searched and "<feedback>" not in searched:
        return False
    is_short = len(text) <= _SHORT_CHARS
    ends = searched if is_short else f"{searched[:_ENDS_CHARS]}\n{searched[-_ENDS_CHARS:]}"
    return _TELLS.search(ends) is not None or any(each.search(searched) for each in _SAYS)


def _host_blocks(text: str) -> Iterator[str]:
    """The texts that a host has added anywhere in a result, in its markup."""
    for name in _HOST_NAMES:
        end = 0
        while (begin := text.find(f"<{name}>", end)) >= 0 and (end := text.find(f"</{name}>", begin)) >= 0:
            yield text[begin:end]


def own_length(text: str) -> int:
    """The length of a result without the texts that a host has added at its end, in its markup.

    It reads backwards, block by block.
    """
    end = len(text)
    while True:
        last = end
        while last and text[last - 1].isspace():
            last -= 1
        if not text.endswith(_HOST_ENDS, 0, last):
            return end
        name = text[text.rfind("</", 0, last) + 2 : last - 1]
        begin = text.rfind(f"<{name}>", 0, last)
        if begin < 0:
            return end
        end = begin
