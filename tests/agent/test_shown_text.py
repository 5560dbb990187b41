"""Messages that are more than text, as people see them."""

from reward_kit.agent.base.history import shown_text

PIXEL = "data:image/png;base64,iVBORw0KGgo="
LOOK = "Look:\n[image_url: image/png, 12 characters]"


def test_parts_that_are_no_text_are_named() -> None:
    url = {"url": "https://example.org/a.png"}
    for content, shown in (
        ("plain", "plain"),
        (None, ""),
        ([{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": PIXEL}}], LOOK),
        ([{"type": "image_url", "image_url": url}], "[image_url: https://example.org/a.png]"),
        ([{"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}], "[input_audio]"),
        ([{"type": 3}, 4, {"type": "image_url", "image_url": "https:/\ud800"}], "[image_url: https:/?]"),
    ):
        assert shown_text(content) == shown
