"""A page that says why there is no other."""

from __future__ import annotations

from reward_kit.agent.pages.rendering import render


def fault_page(text: str) -> str:
    """``text`` alone; it may stand at any address, and so has no links."""
    return render("fault.html", title="Not shown", text=text)
