"""Messages that are more than text, as people see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flight_bundle import flight_bundle

from reward_kit.agent import agent_eval
from reward_kit.agent.history import shown_text
from reward_kit.agent.pages.conversation import conversation
from reward_kit.agent.reports.transcript import transcript
from reward_kit.agent.runs.rollout_record import load_rollout

PIXEL = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("plain", "plain"),
        (None, ""),
        (
            [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": PIXEL}}],
            "Look:\n[image_url: image/png, 12 characters]",
        ),
        (
            [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}],
            "[image_url: https://example.org/a.png]",
        ),
        ([{"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}], "[input_audio]"),
        (
            [{"type": 3}, 4, {"type": "image_url", "image_url": "https://example.org/\ud800"}],
            "[image_url: https://example.org/?]",
        ),
    ],
)
def test_parts_that_are_no_text_are_named(content: Any, shown: str) -> None:
    assert shown_text(content) == shown


def test_an_image_is_named_in_transcripts_and_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    said = [{"type": "text", "text": "This one."}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    bundle.rows({"id": "a", "actions": [], "initial_messages": [{"role": "user", "content": said}]})
    result = agent_eval(bundle.dataset, agent="gold", no_sim_user=True)
    record = load_rollout(result.folder / result.outcomes[0].file)
    assert "[image_url: image/png, 12 characters]" in transcript(record)
    assert "[image_url: image/png, 12 characters]" in next(iter(conversation(record))).text
