"""The demo session of the page: the morning of a scripted agent, played through the service with a clock of its own.

Texts, sizes and times are made up, and the session is named `demo`. What the page shows of it is computed as for any
other session: the agent's requests are reported as the proxy reports them, with the usage of a provider whose prompt
cache lives for five minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from contextfold.common.tokens import tokens_of
from contextfold.fold.events import ResultLeftOut
from contextfold.fold.messages import Fold, Receipt
from contextfold.fold.project import Caller, Target, hash_text, project_at, target_of
from contextfold.fold.sent_request import RequestReport, Share, Usage
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.session_views import DEMO_PROJECT as PROJECT
from contextfold.fold.store import ArchivedResult, LeftOutDecision

SESSION = "demo"
HOST, MODEL = "claude-code", "claude-sonnet-4-5"
CACHE_LIFE_S = 300
# What the host sends before the first message, and what our definitions and stubs take.
HOST_TOKENS, OUR_TOKENS, STUB_TOKENS = 21_400, 225, 45
OUTPUT_TOKENS, FOLD_OUTPUT_TOKENS = 260, 110

_CODE = """def total(prices, discount):
    subtotal = sum(prices)
    if discount > 1:
        discount = discount / 100
    return round(subtotal * (1 - discount), 2)
"""
_LOG = "2026-03-02T09:14:07Z order=48213 items=3 subtotal=100.00 discount=1 total=0.00 source=checkout-form\n"
_FAILED = """FAILED tests/test_cart.py::test_a_discount_of_one_percent
    assert total([100], discount=1) == 99
E   assert 0.0 == 99
"""
_VOUCHER = """def redeem(cart, voucher):
    if voucher.expires_at < cart.created_at:
        raise VoucherExpired(voucher.code)
    cart.discount = max(cart.discount, voucher.percent / 100)
"""
_PASSED = "tests/test_cart.py ........................................... passed\n"
_EXPORT = "order_id,created_at,subtotal,discount,total\n48213,2026-03-02T09:14:07Z,100.00,1,99.00\n"


class Said(NamedTuple):
    """The user's words."""

    text: str


class Used(NamedTuple):
    """A call of a tool and its result: the text as often as the tokens need it."""

    tool: str
    about: str
    text: str
    tokens: int
    failed: bool = False


class Folds(NamedTuple):
    summary: str


class Rests(NamedTuple):
    """A pause, after which the provider's cache is empty and the proxy leaves old results out."""

    minutes: int


Step = Said | Used | Folds | Rests

MORNING: tuple[Step, ...] = (
    Said("The checkout shows 0.00 for carts with a discount of 1 %. Find out why and fix it, with a test."),
    Used("Grep", "discount", "cart/total.py:3:    if discount > 1:\ncart/form.py:18: discount = int(field)\n", 3_100),
    Used("Read", "cart/total.py", _CODE, 2_400),
    Used("Bash", "tail -400 logs/orders.log", _LOG, 11_800),
    Used("Read", "cart/form.py", _CODE, 4_000),
    Used("Bash", "pytest tests/test_cart.py", _FAILED, 6_200, failed=True),
    Folds(
        "cart/total.py:3 treats a discount of exactly 1 as a fraction, so 1 % becomes 100 %. The form always sends "
        "percent; no caller sends fractions. tests/test_cart.py has a failing test for it."
    ),
    Used("Edit", "cart/total.py", _CODE, 900),
    Used("Bash", "pytest tests/test_cart.py", _PASSED, 1_900),
    Said("Good. Vouchers have a discount of their own. Are they right?"),
    Used("Grep", "voucher", "cart/voucher.py:1: def redeem(cart, voucher):\n", 2_700),
    Used("Read", "cart/voucher.py", _VOUCHER, 9_600),
    Used("Read", "tests/test_voucher.py", _FAILED, 7_300),
    Used("Bash", "pytest tests -k voucher", _PASSED, 12_400),
    Rests(74),
    Said("Back from lunch. Please bring the CSV export in line, too."),
    Used("Read", "export/orders.py", _EXPORT, 5_200),
    Used("Bash", "python -m export.orders --dry-run", _EXPORT, 9_800),
    Used("Edit", "export/orders.py", _EXPORT, 1_100),
    Folds("export/orders.py now writes discounts as percent with two decimals. The dry run of 1,204 orders agrees."),
    Used("Bash", "pytest", _PASSED, 3_300),
)
MINUTES_PER_STEP = 1.5


class _Clock:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def wait(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)


@dataclass(slots=True)
class _Part:
    """A part of the conversation, and what of it is sent."""

    tokens: int
    # Of a tool result.
    call_id: str = ""
    result: LeftOutDecision | None = None
    # The fold in which it is.
    branch_id: str = ""

    @property
    def sent(self) -> int:
        return 0 if self.branch_id else STUB_TOKENS if self.result else self.tokens


class _Morning:
    def __init__(self, service: FoldService, caller: Caller, clock: _Clock) -> None:
        self._service, self._caller, self._clock = service, caller, clock
        self._target: Target = target_of(caller, project_at(PROJECT))
        self._parts: list[_Part] = []
        self._sent_before: list[int] = []
        self._last_at: datetime | None = None
        # The first part that the next fold takes.
        self._work_begins = self._requests = 0
        self._folds: list[Fold] = []
        # Whether the model answers the next request with nothing but a call of `context_fold`.
        self._folds_next = False
        # The messages that no request has had, and the parts that are left out for the first time.
        self._new_texts: list[str] = []
        self._new_stubs: list[_Part] = []

    async def play(self) -> None:
        for step, next_step in zip_longest(MORNING, MORNING[1:]):
            self._folds_next = isinstance(next_step, Folds)
            match step:
                case Said(text):
                    self._add(text, tokens_of(len(text)))
                    self._work_begins = len(self._parts)
                    await self._request()
                case Used():
                    await self._use(step)
                case Folds(summary):
                    await self._fold(summary)
                case Rests(minutes):
                    self._clock.wait(minutes)
                    await self._leave_out()
            self._clock.wait(MINUTES_PER_STEP)
        await self._service.reports.settle(self._target.key)

    def _add(self, text: str, tokens: int) -> None:
        self._parts.append(_Part(tokens))
        self._new_texts.append(text)

    async def _use(self, used: Used) -> None:
        text = used.text * (used.tokens * 4 // len(used.text) + 1)
        content = f"{used.about}\n{text}"[: used.tokens * 4]
        # The hook's report has the text, so the request brings none.
        self._parts.append(_Part(used.tokens, f"toolu_{len(self._parts):04}"))
        fields = {"type": used.tool, "content": content, "failed": used.failed, "project_path": PROJECT}
        await self._service.record(self._caller, fields, "hook")
        await self._request()

    async def _fold(self, summary: str) -> None:
        outcome = await self._service.fold_work(self._caller, {"message": summary, "project_path": PROJECT})
        branch_id = outcome.answer["branch_id"]
        work = self._parts[self._work_begins :]
        kept = HOST_TOKENS + OUR_TOKENS + sum(part.sent for part in self._parts[: self._work_begins])
        dropped = sum(part.sent for part in work)
        self._folds.append(Fold(branch_id, self._work_begins + 1, 2 * len(work), len(work), dropped, kept))
        for part in work:
            part.branch_id = branch_id
        self._add(summary, tokens_of(len(summary)) + OUR_TOKENS)
        self._work_begins = len(self._parts)
        await self._request()

    async def _leave_out(self) -> None:
        """What the proxy does after a pause: old results are stored, and stubs are sent."""
        old = [part for part in self._parts[:-2] if part.call_id and not part.branch_id]
        items = []
        for part in old:
            result_id = f"res_{hash_text(f'{self._target.key}/{part.call_id}')[:16]}"
            part.result = LeftOutDecision(
                part.call_id, hash_text(part.call_id), result_id, f"[contextfold: left out, {result_id}]",
                decided_at=self._clock.now.isoformat(timespec="seconds").replace("+00:00", "Z"), tokens=part.tokens,
                project_hash=self._target.key.project_hash, project_path=PROJECT,
            )  # fmt: skip
            items.append(ArchivedResult(part.result, "(the text of a made-up result)"))
        await self._service.store.keep_left_out(self._target.key.owner, SESSION, items)
        self._new_stubs = old

    async def _request(self) -> None:
        sizes = [HOST_TOKENS + OUR_TOKENS, *(part.sent for part in self._parts)]
        is_warm = self._last_at is not None and (self._clock.now - self._last_at).total_seconds() <= CACHE_LIFE_S
        same = next((n for n, (a, b) in enumerate(zip(sizes, self._sent_before, strict=False)) if a != b), None)
        common = min(len(sizes), len(self._sent_before)) if same is None else same
        cached, sent = sum(sizes[:common]) if is_warm else 0, sum(sizes)
        # A part in a fold that is left out for the second time is gone with the fold.
        full = HOST_TOKENS + OUR_TOKENS + sum(part.tokens for part in self._parts)
        stubs = [part.result for part in self._parts if part.result and not part.branch_id]
        first = next((n for n, part in enumerate(self._parts) if part.sent != part.tokens), None)
        begins = None
        if self._new_stubs:
            begins = sum(sizes[: 1 + self._parts.index(self._new_stubs[0])])
        self._requests += 1
        report = RequestReport(
            id=f"demo-{self._requests}",
            api="anthropic",
            model=MODEL,
            receipt=Receipt(
                full, sent, len(self._parts) + 1, len(self._parts) + 1,
                turns_dropped=sum(fold.turns for fold in self._folds), results_left_out=len(stubs),
                first_changed=first, folds=tuple(self._folds),
            ),
            usage=Usage(4, cached, sent - cached - 4, FOLD_OUTPUT_TOKENS if self._folds_next else OUTPUT_TOKENS),
            shares=(Share(None, sent - HOST_TOKENS - OUR_TOKENS, len(self._parts), tuple(self._new_texts)),),
            our_tokens=OUR_TOKENS * (1 + len(self._folds)),
            our_output_tokens=FOLD_OUTPUT_TOKENS if self._folds_next else 0,
            only_ours=self._folds_next,
            kept_tokens=begins,
            new_blocks=2,
            left_out=tuple(ResultLeftOut(each.result_id, each.tokens) for each in stubs),
            host_tokens=HOST_TOKENS + OUR_TOKENS,
            work_tokens=sum(part.sent for part in self._parts[self._work_begins :]),
            has_tools=True,
        )  # fmt: skip
        self._service.reports.receive(self._target, report)
        await self._service.reports.settle(self._target.key)
        self._new_texts, self._new_stubs = [], []
        self._sent_before, self._last_at = sizes, self._clock.now


def _duration() -> timedelta:
    rests = sum(step.minutes for step in MORNING if isinstance(step, Rests))
    return timedelta(minutes=rests + MINUTES_PER_STEP * len(MORNING))


async def demo_session(service: FoldService, owner: str) -> str | None:
    """The id of the owner's demo session, which is made if there is none."""
    caller = Caller(owner, SESSION)
    key = target_of(caller, project_at(PROJECT)).key
    state = await service.look(key)
    if not state.session_id:
        clock = _Clock(datetime.now(UTC) - _duration())
        await _Morning(service.with_clock(clock), caller, clock).play()
        state = await service.look(key)
    return state.session_id
