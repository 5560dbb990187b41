"""Whose a failure inside FastWorkflow is: a model's, the surroundings', or the agent's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.agent.redaction import redact
from reward_kit.errors import AgentError, ModelError, ModelInputError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

_INPUT = {"ContextWindowExceededError", "ContentPolicyViolationError"}
_SETUP = {
    "AuthenticationError",
    "LMAuthError",
    "LMBillingError",
    "LMConfigurationError",
    "LMNotConfiguredError",
    "LMUnsupportedModelError",
    "NotFoundError",
    "PermissionDeniedError",
}
_SETUP_STATUS = {401, 402, 403, 404}
_FINAL_STATUS = {400, 422}


def raise_fault(fault: Mapping[str, Any]) -> NoReturn:
    """Raise what the worker told: ``ModelError`` for models and tools, ``AgentError`` for FastWorkflow."""
    text = redact(f"{fault['name']}: {fault['text']}")
    if fault["kind"] == "agent":
        raise AgentError(f"FastWorkflow failed: {text}")
    status = fault.get("status")
    status = status if isinstance(status, int) else None
    place = "FastWorkflow"
    if fault["name"] in _INPUT or status == 413:
        raise ModelInputError(f"a model refuses the conversation: {text}", place=place, status=status)
    if fault["name"] in _SETUP or status in _SETUP_STATUS:
        raise ModelSetupError(
            f"a model cannot be called: {text}",
            place=place,
            remedy="Check the models in LLM_* and their keys.",
            status=status,
        )
    raise ModelError(
        f"a model did not answer: {text}" if fault["kind"] == "model" else text,
        place=place,
        status=status,
        retryable=status not in _FINAL_STATUS,
    )
