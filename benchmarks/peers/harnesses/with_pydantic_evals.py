"""The task for pydantic-evals: a dataset whose task is an agent of pydantic-ai, an evaluator on the stock.

The model is a ``FunctionModel``, pydantic-ai's own extension point for stubs. Settings: ``max_concurrency``
as asked, no progress bar, no instrumentation. It keeps its report in memory; ``--save yes`` writes it, with
the messages as each case's output, as one JSON file at the end.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
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
from measuring import measure, parse_arguments
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Evaluator, EvaluatorContext
from pydantic_evals.reporting import EvaluationReportAdapter

if TYPE_CHECKING:
    from pathlib import Path

Stock = dict[int, int]


def stub_model(delay: float) -> FunctionModel:
    """Answers by the number of model responses so far."""

    async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        turn = sum(message.kind == "response" for message in messages)
        text, call = await next_turn(turn, delay)
        part = ToolCallPart(call[0], call[1], f"call_{turn}") if call else TextPart(text or "")
        usage = RequestUsage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
        return ModelResponse([part], usage=usage, model_name="stub")

    return FunctionModel(answer)


def read_item(context: RunContext[Stock], item_id: int) -> str:
    """Read one item of the stock."""
    return json.dumps(read_stock(context.deps, item_id))


def write_item(context: RunContext[Stock], item_id: int, quantity: int) -> str:
    """Change how many there are of an item."""
    return json.dumps(write_stock(context.deps, item_id, quantity))


@dataclass
class Played:
    """The outcome of a case: the conversation, and the stock after it."""

    messages: Any
    stock: Stock


@dataclass
class StockAsExpected(Evaluator[tuple[str, str], Played, None]):
    """The reward."""

    def evaluate(self, context: EvaluatorContext[tuple[str, str], Played, None]) -> float:
        return float(context.output.stock == EXPECTED)


def main() -> None:
    arguments = parse_arguments()

    def play(rollouts: int, folder: Path) -> None:
        agent = Agent(stub_model(arguments.delay), instructions=SYSTEM, deps_type=dict)
        agent.tool(read_item)
        agent.tool(write_item)
        limits = UsageLimits(request_limit=30)

        async def converse(wishes: tuple[str, str]) -> Played:
            stock = dict(STOCK)
            first = await agent.run(wishes[0], deps=stock, usage_limits=limits)
            second = await agent.run(
                wishes[1], deps=stock, message_history=first.all_messages(), usage_limits=limits
            )
            return Played(ModelMessagesTypeAdapter.dump_python(second.all_messages(), mode="json"), stock)

        cases = [Case(name=f"row{number:05}", inputs=WISHES) for number in range(rollouts)]
        dataset = Dataset(name="shop", cases=cases, evaluators=[StockAsExpected()])
        report = asyncio.run(dataset.evaluate(converse, max_concurrency=arguments.at_once, progress=False))
        if arguments.save:
            folder.mkdir(parents=True)
            (folder / "report.json").write_bytes(EvaluationReportAdapter.dump_json(report))
        scores = [one.value for case in report.cases for one in case.scores.values()]
        COUNTER.check(sum(score == 1.0 for score in scores), rollouts)

    measure(arguments, play)


if __name__ == "__main__":
    main()
