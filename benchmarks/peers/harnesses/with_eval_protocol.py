"""The task for eval-protocol: its agent with a policy and a tool client of ours, in a rollout processor.

Everything stays in the process: the policy is the stub, and the tool client answers from a dict per rollout
instead of asking an MCP server. Settings: as many rollouts and evaluations at once as asked, results in its
SQLite store. Its agent stores the row anew with each message; with ``--rows-at-end`` it does not, and the
row is stored when the rollout begins, ends and is judged. ``--save no`` turns the store off
(``DISABLE_EP_SQLITE_LOG``). Annotations are not postponed here: it compares them as types.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from conversation import (
    COUNTER,
    EXPECTED,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    STOCK,
    SYSTEM,
    WISHES,
    next_turn,
    read_stock,
    write_stock,
)
from measuring import measure, parse_arguments

ARGUMENTS = parse_arguments("--rows-at-end")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no network
os.environ["EP_NO_UPLOAD"] = "1"
os.environ["EP_DISABLE_AUTO_BROWSER"] = "1"
os.environ["DISABLE_EP_SQLITE_LOG"] = "0" if ARGUMENTS.save else "1"

from eval_protocol.dataset_logger import default_logger  # noqa: E402 - reads the settings above
from eval_protocol.models import EvaluateResult, EvaluationRow, Message  # noqa: E402
from eval_protocol.pytest import evaluation_test  # noqa: E402
from eval_protocol.pytest.default_agent_rollout_processor import Agent  # noqa: E402
from eval_protocol.pytest.rollout_processor import RolloutProcessor  # noqa: E402
from openai.types import CompletionUsage  # noqa: E402

MODEL = {"model": "gpt-4o-mini"}
"""Only a name, but one that it finds a price for: it complains about each rollout otherwise."""


class StubPolicy:
    """Answers by the number of assistant messages so far."""

    def __init__(self, delay: float) -> None:
        self._delay = delay

    async def _make_llm_call(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        turn = sum(message["role"] == "assistant" for message in messages)
        text, call = await next_turn(turn, self._delay)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if call:
            function = {"name": call[0], "arguments": call[1]}
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
        usage = {
            "prompt_tokens": INPUT_TOKENS,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        }
        return {"choices": [{"message": message}], "usage": usage}


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "integer"} for parameter in parameters},
        "required": list(parameters),
    }
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("read_item", "Read one item of the stock.", "item_id"),
    _tool("write_item", "Change how many there are of an item.", "item_id", "quantity"),
]


class LocalTools:
    """In the place of the MCP client: the tools of one rollout, on its own stock."""

    def __init__(self) -> None:
        self.stock = dict(STOCK)

    async def get_available_tools(self) -> list[dict[str, Any]]:
        return TOOLS

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        tool = read_stock if name == "read_item" else write_stock
        return json.dumps(tool(self.stock, **arguments))


class NoLogger:
    """Stores nothing while a rollout runs."""

    def log(self, _row: EvaluationRow) -> None:
        return None


class ShopAgent(Agent):
    """Its agent; only the policy and the tool client are others."""

    def __init__(self, row: EvaluationRow, delay: float) -> None:
        self.evaluation_row = row
        self._policy = StubPolicy(delay)
        self.mcp_client = LocalTools()
        self.logger = NoLogger() if ARGUMENTS.rows_at_end else default_logger
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class ShopProcessor(RolloutProcessor):
    """Two wishes per row; whether the stock is as expected is handed to the evaluation."""

    def __init__(self, delay: float) -> None:
        self._delay = delay

    def __call__(self, rows: list[EvaluationRow], config: Any) -> list[asyncio.Task[EvaluationRow]]:
        return [asyncio.create_task(self._play(row, config.semaphore)) for row in rows]

    async def _play(self, row: EvaluationRow, semaphore: asyncio.Semaphore) -> EvaluationRow:
        async with semaphore:
            agent = ShopAgent(row, self._delay)
            await agent.call_agent()
            agent.append_message_and_log(Message(role="user", content=WISHES[1]))
            await agent.call_agent()
            row.execution_metadata.usage = CompletionUsage(**agent.usage)
            row.execution_metadata.extra = {"right": agent.mcp_client.stock == EXPECTED}
            return row


def row(number: int) -> EvaluationRow:
    one = EvaluationRow(
        messages=[Message(role="system", content=SYSTEM), Message(role="user", content=WISHES[0])]
    )
    one.input_metadata.row_id = f"row{number:05}"
    return one


def main() -> None:
    passed = 0

    def play(rollouts: int, folder: Path) -> None:
        nonlocal passed
        passed = 0
        os.environ["HOME"] = str(folder.parent)  # where it keeps its store
        rows = [row(number) for number in range(rollouts)]

        @evaluation_test(
            input_rows=[rows],
            completion_params=[MODEL],
            rollout_processor=ShopProcessor(ARGUMENTS.delay),
            max_concurrent_rollouts=ARGUMENTS.at_once,
            max_concurrent_evaluations=ARGUMENTS.at_once,
            disable_browser_open=True,
        )
        async def stock_as_expected(row: EvaluationRow) -> EvaluationRow:
            nonlocal passed
            right = row.execution_metadata.extra["right"]
            passed += right
            row.evaluation_result = EvaluateResult(score=float(right))
            return row

        asyncio.run(stock_as_expected(input_rows=rows, completion_params=MODEL))
        COUNTER.check(passed, rollouts)

    measure(ARGUMENTS, play)


if __name__ == "__main__":
    main()
