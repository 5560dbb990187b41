"""Agents behind HTTP: what they are told, what their answers mean, and what becomes of bad ones."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from http_stub_agent import Door, StubAgent, opened, serving
from small_task import BOOKED, ScriptedUser, seeded, small_task

from reward_kit.agent import load_agent
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.orchestrator import run_rollout_async
from reward_kit.agent.rollout.rollout import Budget, RolloutLimits
from reward_kit.errors import BundleError, ModelSetupError


async def book(turn: dict[str, Any], door: Door) -> dict[str, Any]:
    """Reserve and pay: what the task asks for."""
    reserved = await door.call("create_booking", {"flight_id": 1, "passenger": "Alice"})
    await door.call("pay_booking", {"booking_id": json.loads(reserved["result"])["booking_id"]})
    return {"reply": "Your seat is booked."}


async def play(
    folder: Path,
    script: Any,
    *,
    user: Any = None,
    timeout: float | None = 30,
    budget: Any = None,
    **fields: Any,
) -> tuple[Episode, StubAgent]:
    """One rollout of the small task with an agent that does what ``script`` says."""
    limits = RolloutLimits(timeout=timeout, budget=budget)
    async with serving(script) as stub, opened(stub.url) as agents:
        task = small_task(folder, **fields)
        options = {"base": seeded(folder), "user": user, "limits": limits, "seed": 11}
        finished = await run_rollout_async(task, 3, agent=agents(), **options)
    return finished, stub


def responds(**response: Any) -> Any:
    """A script that answers each turn with this response."""

    async def script(turn: dict[str, Any], door: Door) -> web.Response:
        return web.Response(**response)

    return script


class TestATurn:
    async def test_an_agent_that_books_gets_the_reward(self, tmp_path):
        finished, _ = await play(tmp_path, book, actions=BOOKED)
        assert (finished.trace.reward, finished.trace.stop_reason) == (1.0, "agent_done")
        assert [call.name for call in finished.trace.tool_calls] == ["create_booking", "pay_booking"]
        assert finished.trace.messages[-1] == {"role": "assistant", "content": "Your seat is booked."}

    async def test_what_the_agent_is_told(self, tmp_path):
        finished, stub = await play(tmp_path, book, system_prompt="Be brief.")
        [turn] = stub.turns
        rollout = finished
        assert turn["protocol"] == "reward-kit.agent/1"
        assert turn["event"] == "turn"
        assert turn["rollout"] == {"id": rollout.id, "row_id": "book", "index": 3, "seed": 11, "turn": 1}
        assert turn["system_prompt"] == "Be brief."
        assert turn["messages"] == rollout.messages[:2]
        assert turn["message"] == "Book me a flight"
        assert turn["tools"] == rollout.tools
        assert turn["door"]["tools_url"].startswith("http://127.0.0.1:")
        assert "Authorization" not in stub.headers

    async def test_nothing_of_the_rows_answers_is_sent(self, tmp_path):
        secrets = {
            "actions": [{"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "S-gold"}}],
            "outputs": ["S-output"],
            "end_goal_sql": "SELECT 'S-goal'",
            "sim_user_prompt": "S-prompt",
            "answer": "S-field",
        }
        shown = []

        async def look(turn: dict[str, Any], door: Door) -> dict[str, Any]:
            shown.append(await door.look())
            return {"reply": "Hello"}

        _, stub = await play(tmp_path, look, user=ScriptedUser([]), **secrets)
        sent = json.dumps([stub.turns, stub.closed, shown])
        assert "Book me a flight" in sent
        assert [name for name in ("gold", "output", "goal", "prompt", "field") if f"S-{name}" in sent] == []

    async def test_each_turn_has_the_whole_history(self, tmp_path):
        async def echo(turn: dict[str, Any], door: Door) -> dict[str, Any]:
            return {"reply": f"{turn['message']}?"}

        _, stub = await play(tmp_path, echo, user=ScriptedUser(["And a window seat"]))
        first, second = stub.turns
        assert (first["rollout"]["turn"], second["rollout"]["turn"]) == (1, 2)
        assert first["door"] == second["door"]
        assert second["message"] == "And a window seat"
        assert second["messages"] == [
            *first["messages"],
            {"role": "assistant", "content": "Book me a flight?"},
            {"role": "user", "content": "And a window seat"},
        ]

    async def test_reasoning_is_kept_in_the_history_and_not_said(self, tmp_path):
        thinks = {"reply": "Hello", "reasoning": "be polite"}
        finished, _ = await play(tmp_path, responds(text=json.dumps(thinks)))
        assert finished.trace.messages[-1]["reasoning_content"] == "be polite"
        assert finished.trace.lines[-1].text == "Hello"

    async def test_a_byte_order_mark_is_no_fault(self, tmp_path):
        """As some encoders of UTF-8 write it, .NET's for one."""
        mark = b"\xef\xbb\xbf"

        async def marked(turn: dict[str, Any], door: Door) -> web.Response:
            token = {"Authorization": f"Bearer {turn['door']['token']}", "Content-Type": "application/json"}
            async with door.http.post(
                f"{turn['door']['tools_url']}/ping", data=mark + b"{}", headers=token
            ) as call:
                return web.Response(body=mark + json.dumps({"reply": (await call.json())["result"]}).encode())

        finished, _ = await play(tmp_path, marked)
        assert finished.trace.lines[-1].text == "pong"

    async def test_done_ends_the_rollout_after_the_reply(self, tmp_path):
        bye = responds(text=json.dumps({"reply": "Goodbye", "done": True}))
        finished, stub = await play(tmp_path, bye, user=ScriptedUser(["never said"]))
        assert finished.trace.stop_reason == "agent_done"
        assert finished.trace.messages[-1]["content"] == "Goodbye"
        assert len(stub.turns) == 1

    async def test_usage_is_counted(self, tmp_path):
        tokens = {"input_tokens": 100, "output_tokens": 20}
        priced = {"model": "my-llm", **tokens, "cost": 0.25, "seconds": 1.5}
        counted = {"reply": "Hello", "usage": [priced, {"input_tokens": 7, "cached_tokens": 3}]}
        finished, stub = await play(tmp_path, responds(text=json.dumps(counted)))
        usage = finished.trace.usage["agent"]
        assert (usage.calls, usage.input_tokens, usage.cached_tokens) == (2, 107, 3)
        assert (usage.output_tokens, usage.cost, usage.unpriced_calls) == (20, 0.25, 1)
        assert [call.model for call in finished.trace.model_calls] == ["my-llm", stub.url]
        assert finished.trace.model_calls[0].seconds == 1.5

    @pytest.mark.parametrize("budget", [Budget(max_tokens=100), Budget(max_cost=0.5)])
    async def test_a_budget_that_is_used_up_ends_the_rollout_before_the_next_turn(self, tmp_path, budget):
        used = {"input_tokens": 90, "output_tokens": 20, "cost": 0.5}
        costly = responds(text=json.dumps({"reply": "Hello", "usage": used}))
        finished, stub = await play(tmp_path, costly, user=ScriptedUser(["Go on"] * 3), budget=budget)
        assert finished.trace.stop_reason == "budget"
        assert (len(stub.turns), finished.trace.messages[-1]["content"]) == (1, "Go on")


class TestUnusableAnswers:
    @pytest.mark.parametrize(
        ("body", "told"),
        [
            ("<html>", "is not JSON"),
            ("{}", "no reply"),
            ('{"reply": null}', "no reply"),
            ('{"reply": "  "}', "empty reply"),
            ('{"reply": "a", "done": "yes"}', "has done: input should be a valid boolean"),
            ('{"reply": "a", "usage": [{"input_tokens": -1}]}', "usage.0.input_tokens: input should be"),
        ],
    )
    async def test_are_the_agents_error_and_say_what_is_wrong(self, tmp_path, body, told):
        finished, _ = await play(tmp_path, responds(text=body))
        assert (finished.trace.stop_reason, finished.trace.reward) == ("agent_error", 0.0)
        assert told in finished.trace.stop_detail

    async def test_a_token_that_the_agent_repeats_is_not_shown(self, tmp_path, monkeypatch):
        monkeypatch.setenv("REWARD_KIT_AGENT_TOKEN", "agent-secret")
        tokens = []

        async def script(turn: dict[str, Any], door: Door) -> Any:
            tokens.append(turn["door"]["token"])
            return web.Response(status=400, text=f"{turn['door']['token']} agent-secret")

        finished, stub = await play(tmp_path, script)
        assert stub.headers["Authorization"] == "Bearer agent-secret"
        assert finished.trace.stop_detail.endswith("[hidden] [hidden]")
        assert tokens[0] not in json.dumps(finished.trace.messages)


class TestNoAnswer:
    async def test_an_error_of_its_own_is_the_agents(self, tmp_path):
        finished, _ = await play(tmp_path, responds(status=500, text="Traceback"))
        assert (finished.trace.stop_reason, finished.trace.reward) == ("agent_error", 0.0)
        assert "HTTP 500: Traceback" in finished.trace.stop_detail

    @pytest.mark.parametrize("status", [502, 503, 429])
    async def test_a_server_error_is_the_surroundings(self, tmp_path, status):
        finished, _ = await play(tmp_path, responds(status=status, text="overloaded"))
        assert (finished.trace.stop_reason, finished.trace.reward) == ("infrastructure_error", None)
        assert f"HTTP {status}: overloaded" in finished.trace.stop_detail

    async def test_an_agent_that_hangs_runs_out_of_time(self, tmp_path):
        gone = asyncio.Event()

        async def script(turn: dict[str, Any], door: Door) -> Any:
            try:
                await asyncio.sleep(60)
            finally:
                gone.set()

        finished, stub = await play(tmp_path, script, timeout=0.3)
        assert finished.trace.stop_reason == "timeout"
        assert stub.closed[0]["stop_reason"] == "timeout"


class TestBeforeTheRun:
    async def test_nobody_listening_is_told_before_the_first_rollout(self):
        agents = load_agent("http://127.0.0.1:9")
        with pytest.raises(ModelSetupError, match=r"no agent answers at http://127\.0\.0\.1:9"):
            await agents.open()
        await agents.close()

    @pytest.mark.parametrize("url", ["http://", "http://[::1", "http://127.0.0.1:99999", "https://a b"])
    def test_an_address_that_is_none_is_refused(self, url):
        with pytest.raises(BundleError, match="is not an address"):
            load_agent(url)

    @pytest.mark.parametrize("url", ["http://me:secret@127.0.0.1:9000", "http://127.0.0.1:9000/?key=secret"])
    def test_secrets_in_the_address_are_refused_and_not_shown(self, url):
        with pytest.raises(BundleError, match="REWARD_KIT_AGENT_TOKEN") as raised:
            load_agent(url)
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize(
        ("status", "told"),
        [(401, "REWARD_KIT_AGENT_TOKEN"), (404, "http-agent.md"), (307, "Redirects are not followed")],
    )
    async def test_a_refusal_from_the_start_is_a_fault_of_the_setup(self, tmp_path, status, told):
        script = responds(status=status, headers={"Location": "http://127.0.0.1:1/"})
        finished, _ = await play(tmp_path, script)
        assert isinstance(finished.refused, ModelSetupError)
        assert told in str(finished.refused)

    async def test_a_refusal_later_is_the_agents_error(self, tmp_path):
        async def script(turn: dict[str, Any], door: Door) -> Any:
            return {"reply": "Hello"} if turn["rollout"]["turn"] == 1 else web.Response(status=404)

        finished, _ = await play(tmp_path, script, user=ScriptedUser(["Go on"]))
        assert finished.refused is None
        assert finished.trace.stop_reason == "agent_error"
