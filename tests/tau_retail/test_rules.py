"""The rules of the retail bundle: conversations that keep them, and one that breaks each."""

from typing import Any

import pytest
from places import BUNDLE

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.bundles.rules import read_rules
from reward_kit.agent.rollout.episode import Episode

ORDER = "#W5065081"
FIND = ("find_user_id_by_name_zip", {"first_name": "Aarav", "last_name": "Brown", "zip": "94132"})
NOBODY = ("find_user_id_by_email", {"email": "nobody@example.com"})
OTHER = ("find_user_id_by_email", {"email": "noah.brown7922@example.com"})
READ = ("get_order_details", {"order_id": ORDER})
READ_OTHER = ("get_order_details", {"order_id": "#W1006327"})
PRODUCT = ("get_product_details", {"product_id": "7233192239"})
CANCEL = ("cancel_pending_order", {"order_id": ORDER, "reason": "no longer needed"})
CANCEL_OTHER = ("cancel_pending_order", {"order_id": "#W1006327", "reason": "no longer needed"})


def modify(item: str, new: str) -> tuple[str, dict[str, Any]]:
    items = {"item_ids": [item], "new_item_ids": [new], "payment_method_id": "credit_card_3627996"}
    return "modify_pending_order_items", {"order_id": ORDER, **items}


FIRST, SECOND = modify("6245231688", "2444431651"), modify("4579334072", "3453331371")
HELLO, ASK, YES = "user: Hello, I am Aarav Brown, 94132.", "agent: Shall I do it?", "user: Yes, please."


class Lines:
    """A user who says these lines."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    async def respond(self, rollout: Any) -> str:
        return self.lines.pop(0)


@pytest.fixture(scope="module")
def task() -> Any:
    with TaskBundle.load(BUNDLE) as bundle:
        yield bundle.tasks[0]


async def broken(task: Any, base: Any, *parts: Any) -> set[str]:
    """The rules that a conversation breaks: lines of ``user:`` and ``agent:``, and calls."""
    lines = [part.removeprefix("user: ") for part in parts if part[0] == "u"]
    with Episode(task, base=base, user=Lines([*lines, "###STOP###"]), seed=0) as episode:
        await episode.start()
        for part in parts:
            if part[0].startswith("a"):
                await episode.say(part.removeprefix("agent: "))
            elif isinstance(part, tuple):
                await episode.call(*part)
        await episode.finish()
        assert episode.violations is not None
        return {name for name, rows in episode.violations.items() if rows}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((HELLO, FIND, READ, ASK, YES, CANCEL, "agent: Done."), set()),
        ((HELLO, NOBODY, FIND, READ, "agent: And the other?", "user: A question.", PRODUCT), set()),
        ((HELLO, FIND, ASK, "user: OK, go ahead with both.", FIRST, CANCEL_OTHER), {"one_customer"}),
        ((HELLO, READ, FIND), {"identity_first"}),
        ((HELLO, NOBODY, READ), {"identity_first"}),
        ((HELLO, PRODUCT), set()),
        ((HELLO, ASK, YES, CANCEL), {"identity_first"}),
        ((HELLO, FIND, CANCEL), {"confirmed"}),
        ((HELLO, FIND, ASK, "user: No, wait. I am not sure.", CANCEL), {"confirmed"}),
        ((HELLO, FIND, ASK, "user: What would it cost?", CANCEL), {"confirmed"}),
        ((HELLO, FIND, ASK, YES, "agent: It will be cancelled.", "user: When?", CANCEL), {"confirmed"}),
        ((HELLO, FIND, OTHER), {"one_customer"}),
        ((HELLO, FIND, ("get_user_details", {"user_id": "noah_brown_6181"})), {"one_customer"}),
        ((HELLO, FIND, READ_OTHER, "agent: That is not yours.", "user: Oh."), set()),
        ((HELLO, FIND, ASK, YES, FIRST, SECOND), {"items_once"}),
        ((HELLO, FIND, ASK, YES, FIRST, "agent: Done.", YES, READ), set()),
    ],
)
async def test_a_conversation_breaks_these_rules(task: Any, base: Any, parts: Any, expected: Any) -> None:
    assert await broken(task, base, *parts) == expected


async def test_a_replay_without_a_user_keeps_every_rule(task: Any, base: Any) -> None:
    with Episode(task, base=base) as episode:
        for call in (READ, CANCEL):
            await episode.call(*call)
        await episode.finish()
        assert episode.violations == {rule.name: [] for rule in read_rules(BUNDLE / "rules.sql")}
