"""The task for inspect: tools on the sample's store, a solver with two tool loops, a scorer on the store.

The model is a ``ModelAPI`` of a provider registered here. Settings: as many samples and connections at once
as asked, no display, no realtime log, no API calls in the log, no control server, scores not shown while it
runs, the log written for every 100 samples. ``--save no`` leaves the samples out of the log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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
from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.model._model_output import ChatCompletionChoice
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver, use_tools
from inspect_ai.tool import ToolCall, tool
from inspect_ai.util import store
from measuring import measure, parse_arguments

if TYPE_CHECKING:
    from pathlib import Path


class StubAPI(ModelAPI):
    """Answers by the number of assistant messages so far."""

    def __init__(self, model_name: str, base_url: str | None = None, delay: float = 0.0, **_: Any) -> None:
        super().__init__(model_name, base_url)
        self._delay = delay

    async def generate(self, input: list[Any], **_: Any) -> ModelOutput:  # noqa: A002 - its name there
        turn = sum(message.role == "assistant" for message in input)
        text, call = await next_turn(turn, self._delay)
        calls = None
        if call:
            calls = [ToolCall(id=f"call_{turn}", function=call[0], arguments=json.loads(call[1]))]
        message = ChatMessageAssistant(content=text or "", tool_calls=calls, model="stub", source="generate")
        choice = ChatCompletionChoice(message=message, stop_reason="tool_calls" if call else "stop")
        usage = ModelUsage(
            input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, total_tokens=INPUT_TOKENS + OUTPUT_TOKENS
        )
        return ModelOutput(model="stub", choices=[choice], usage=usage)


@modelapi(name="stub")
def stub() -> type[ModelAPI]:
    return StubAPI


@tool
def read_item() -> Any:
    async def execute(item_id: int) -> str:
        """Read one item of the stock.

        Args:
            item_id: The number of the item.
        """
        return json.dumps(read_stock(store().get("stock"), item_id))

    return execute


@tool
def write_item() -> Any:
    async def execute(item_id: int, quantity: int) -> str:
        """Change how many there are of an item.

        Args:
            item_id: The number of the item.
            quantity: How many there are now.
        """
        return json.dumps(write_stock(store().get("stock"), item_id, quantity))

    return execute


@solver
def two_wishes() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        state.store.set("stock", dict(STOCK))
        state = await generate(state, tool_calls="loop")
        state.messages.append(ChatMessageUser(content=WISHES[1]))
        return await generate(state, tool_calls="loop")

    return solve


@scorer(metrics=[accuracy()])
def stock_as_expected() -> Any:
    async def score(state: Any, target: Any) -> Score:  # noqa: ARG001 - its name there
        return Score(value=float(state.store.get("stock") == EXPECTED))

    return score


def shop(rollouts: int) -> Task:
    messages = [ChatMessageSystem(content=SYSTEM), ChatMessageUser(content=WISHES[0])]
    samples = [Sample(input=list(messages), id=f"row{number:05}") for number in range(rollouts)]
    return Task(
        dataset=MemoryDataset(samples),
        solver=[use_tools([read_item(), write_item()]), two_wishes()],
        scorer=stock_as_expected(),
        name="shop",
    )


def main() -> None:
    arguments = parse_arguments()

    def play(rollouts: int, folder: Path) -> None:
        (log,) = run_eval(
            shop(rollouts),
            model="stub/stub",
            model_args={"delay": arguments.delay},
            max_samples=arguments.at_once,
            max_connections=arguments.at_once,
            display="none",
            log_level="error",
            log_level_transcript="error",
            log_dir=str(folder),
            log_samples=arguments.save,
            log_realtime=False,
            log_model_api=False,
            log_buffer=100,
            log_header_only=True,
            score_display=False,
            ctl_server=False,
        )
        if log.status != "success":
            raise RuntimeError(str(log.error))
        COUNTER.check(round(log.results.scores[0].metrics["accuracy"].value * rollouts), rollouts)

    measure(arguments, play)


if __name__ == "__main__":
    main()
