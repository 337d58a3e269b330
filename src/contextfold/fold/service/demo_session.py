"""Makes a small scripted session, which shows the dashboard to a user before an agent has worked.

It uses the same verbs as an agent's calls and is an ordinary session of the owner: it ends when it is idle. It has no
requests to models, because none were sent.
"""

from __future__ import annotations

from contextfold.fold.project import Caller, project_at, target_of
from contextfold.fold.service.fold_service import FoldService

DEMO_PROJECT = "/demo/contextfold-demo"
DEMO_SESSION = "demo"
SOURCE = "reported"
_PROJECT = {"project_path": DEMO_PROJECT}

_CODE = """def total(prices, discount):
    subtotal = sum(prices)
    if discount > 1:
        discount = discount / 100
    return round(subtotal * (1 - discount), 2)
"""
_TRACE = """FAILED tests/test_cart.py::test_a_discount_of_one_percent
    assert total([100], discount=1) == 99
E   assert 0.0 == 99
"""


class DemoAgent:
    """Makes the calls of an agent on the demo's project."""

    def __init__(self, service: FoldService, owner: str) -> None:
        self._service, self._caller = service, Caller(owner, DEMO_SESSION)

    async def branch(self, description: str, prompt: str) -> None:
        await self._service.open_branch(self._caller, {"description": description, "prompt": prompt, **_PROJECT})

    async def record(self, kind: str, text: str, *, times: int = 1, failed: bool = False) -> None:
        arguments = {"type": kind, "content": text * times, "failed": failed, **_PROJECT}
        await self._service.record(self._caller, arguments, source=SOURCE)

    async def return_summary(self, summary: str) -> None:
        await self._service.return_branch(self._caller, {"message": summary, **_PROJECT})

    async def fold_work(self, summary: str) -> None:
        await self._service.fold_work(self._caller, {"message": summary, **_PROJECT})


async def demo_session(service: FoldService, owner: str) -> str | None:
    """The id of the owner's demo session, which is created if there is none."""
    key = target_of(Caller(owner, DEMO_SESSION), project_at(DEMO_PROJECT)).key
    state = await service.look(key)
    if not state.session_id:
        await _play(DemoAgent(service, owner))
        state = await service.look(key)
    return state.session_id


async def _play(agent: DemoAgent) -> None:
    await agent.record("Message", "A discount of 1 % makes the cart free. Find out why and fix it, with a test.")
    await agent.branch("Find the cause", "Follow the discount from the form to the total. Name the line.")
    await agent.record("Grep", "cart/total.py:3: if discount > 1:\ncart/form.py:18: discount = int(field)\n", times=20)
    await agent.record("Read", _CODE, times=25)
    await agent.branch("Reproduce it in a test", "Write a failing test for a discount of 1 %.")
    await agent.record("Write", "def test_a_discount_of_one_percent():\n    assert total([100], discount=1) == 99\n")
    await agent.record("Bash", _TRACE, times=12, failed=True)
    await agent.return_summary("tests/test_cart.py has a failing test: total([100], discount=1) is 0.0, not 99.")
    await agent.return_summary(
        "cart/total.py:3 treats a discount of exactly 1 as a fraction, so 1 % becomes 100 %. The form always sends "
        "percent; no caller sends fractions."
    )
    await agent.record("Edit", _CODE, times=12)
    await agent.record("Bash", "12 passed in 0.31s\n", times=30)
    await agent.fold_work("cart/total.py always divides the discount by 100. All 12 tests pass.")
    await agent.branch("Look for other callers", "Check that no other module passes a fraction.")
    await agent.record("Grep", "cart/total.py:1: def total(prices, discount):\n", times=15)
