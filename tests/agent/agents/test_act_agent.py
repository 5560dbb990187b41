"""The agent whose model writes its actions as text, without thoughts."""

from __future__ import annotations

import json
from pathlib import Path

from small_task import BOOKED, InProcessModel, ScriptedUser, play, small_task

from reward_kit.agent import load_agent


def action(name: str, **arguments: object) -> str:
    return f"Action:\n{json.dumps({'name': name, 'arguments': arguments})}"


async def test_actions_alone_book_and_pay(tmp_path: Path) -> None:
    class Booking(InProcessModel):
        """Pays for the booking that the second answer has made."""

        async def complete(self, messages: list[dict[str, object]], **options: object) -> object:  # type: ignore[override]
            if len(self.seen) == 2:
                booked = json.loads(str(messages[-1]["content"]).removeprefix("API output: "))
                self.answers[2] = action("pay_booking", **booked)
            return await super().complete(messages, **options)  # type: ignore[arg-type]

    model = Booking(
        [
            action("respond", content="Shall I book it?"),
            action("create_booking", **BOOKED[0]["arguments"]),  # type: ignore[arg-type]
            "",
            action("respond", content="Booked and paid."),
        ]
    )
    task = small_task(tmp_path, system_prompt="Sell flights.")
    user = ScriptedUser(["Yes"])
    finished = await play(task, load_agent("act")(), user=user, models={"agent": model})
    assert finished.reward == 1.0
    assert user.heard == ["Shall I book it?", "Booked and paid."]
    assert [call.name for call in finished.rollout.tool_calls] == ["create_booking", "pay_booking"]
    assert finished.rollout.messages[-2] == {"role": "assistant", "content": "Booked and paid."}
