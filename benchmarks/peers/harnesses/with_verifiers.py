"""The task as a verifiers environment: a stateful tool environment whose state holds the stock.

The model is a subclass of ``verifiers.clients.Client`` that hands verifiers' own types through unchanged.
Settings: ``max_concurrent`` as asked, scoring each rollout on its own, no progress bar.

With ``--over-http`` the model is verifiers' own client, asking OPENAI_BASE_URL, and nothing is played before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from typing import TYPE_CHECKING, Any

import verifiers as vf
from conversation import (
    COUNTER,
    EXPECTED,
    INPUT_TOKENS,
    MODEL_TURNS,
    OUTPUT_TOKENS,
    STOCK,
    SYSTEM,
    WISHES,
    next_turn,
    read_stock,
    write_stock,
)
from datasets import Dataset
from measuring import WARM_UP, measure, parse_arguments
from verifiers.clients import Client
from verifiers.types import ClientConfig, Response, ResponseMessage, ToolCall, Usage, UserMessage

if TYPE_CHECKING:
    from pathlib import Path


class StubClient(Client):
    """Answers by the number of assistant messages so far."""

    def __init__(self, delay: float) -> None:
        super().__init__(None)
        self._delay = delay

    def setup_client(self, _config: Any) -> None:
        return None

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Response:
        turn = sum(message.role == "assistant" for message in prompt)
        text, call = await next_turn(turn, self._delay)
        calls = [ToolCall(id=f"call_{turn}", name=call[0], arguments=call[1])] if call else None
        message = ResponseMessage(
            content=text,
            tool_calls=calls,
            finish_reason="tool_calls" if call else "stop",
            is_truncated=False,
        )
        usage = Usage(
            prompt_tokens=INPUT_TOKENS,
            reasoning_tokens=0,
            completion_tokens=OUTPUT_TOKENS,
            total_tokens=INPUT_TOKENS + OUTPUT_TOKENS,
        )
        return Response(id=f"answer_{turn}", created=0, model=model, usage=usage, message=message)

    async def raise_from_native_response(self, _response: Any) -> None:
        return None

    async def from_native_response(self, response: Response) -> Response:
        return response

    async def close(self) -> None:
        return None


def read_item(item_id: int, stock: dict[int, int]) -> str:
    """Read one item of the stock."""
    return json.dumps(read_stock(stock, item_id))


def write_item(item_id: int, quantity: int, stock: dict[int, int]) -> str:
    """Change how many there are of an item."""
    return json.dumps(write_stock(stock, item_id, quantity))


class ShopEnv(vf.StatefulToolEnv):
    """The stock is in the state of the rollout; after the first reply the user has a second wish."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_turns=30, **kwargs)
        self.add_tool(read_item, args_to_skip=["stock"])
        self.add_tool(write_item, args_to_skip=["stock"])

    async def setup_state(self, state: vf.State) -> None:
        state["stock"] = dict(STOCK)
        state["wishes"] = 1

    def update_tool_args(self, _name: str, tool_args: dict, _messages: Any, state: Any, **_: Any) -> dict:
        return {**tool_args, "stock": state["stock"]}

    @vf.stop
    async def no_tools_called(self, state: vf.State) -> bool:
        return state["wishes"] == len(WISHES) and await super().no_tools_called(state)

    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        if messages[-1].tool_calls:
            return await super().env_response(messages, state, **kwargs)
        state["wishes"] += 1
        return [UserMessage(content=WISHES[state["wishes"] - 1])]


async def stock_as_expected(state: vf.State) -> float:
    """The reward."""
    return float(state["stock"] == EXPECTED)


def main() -> None:
    arguments = parse_arguments("--over-http")
    logging.getLogger("verifiers").setLevel(logging.WARNING)

    def play(rollouts: int, folder: Path) -> None:
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": WISHES[0]}]
        dataset = Dataset.from_list([{"prompt": prompt, "answer": ""} for _ in range(rollouts)])
        env = ShopEnv(eval_dataset=dataset, rubric=vf.Rubric(funcs=[stock_as_expected]))
        if arguments.over_http:
            address = os.environ["OPENAI_BASE_URL"]
            client = ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=address)
            COUNTER.model_turns = rollouts * MODEL_TURNS  # the server counts them
        else:
            client = StubClient(arguments.delay)
        results = asyncio.run(
            env.evaluate(
                client=client,
                model="stub",
                num_examples=rollouts,
                rollouts_per_example=1,
                max_concurrent=arguments.at_once,
                results_path=folder if arguments.save else None,
                save_results=arguments.save,
                independent_scoring=True,
                on_start=lambda *_: None,
                on_progress=lambda *_: None,
            )
        )
        COUNTER.check(sum(one["reward"] == 1.0 for one in results["outputs"]), rollouts)

    measure(arguments, play, warm_up=0 if arguments.over_http else WARM_UP)


if __name__ == "__main__":
    main()
