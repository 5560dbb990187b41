"""Hard limits that several processes keep together, and notices of which one is told.

One process counts (``LimitsForAll``), the others ask it for each call (``AskedLimits``) and before they tell
people something (``AskedNotices``). They exchange lines:

- to the one that counts: ``{"ask": number, "gate": name, "size": characters}``, then either
  ``{"back": number}`` (the call will not be made) or ``{"went": number}`` (it is being sent; may be left out)
  and ``{"used": number, "usage": [input, output] or null, "spent": bool}``;
- to the same: ``{"news": number, "gate": name, "state": state}``;
- from it: ``{"leave": number}``, for news with ``"tell"``: whether they are.

``number`` is a call, or a notice, of the process that asks.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.completion import Usage
from reward_kit.agent.providers.hard_limits import HardLimits, Taken
from reward_kit.agent.providers.notices import News
from reward_kit.agent.providers.pace import MINUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tell = Callable[[Mapping[str, Any]], None]


# -- in the process that counts


class LimitsForAll:
    """``rpm`` and ``tpm`` for each provider, of all processes together. Used in one event loop."""

    def __init__(self, rpm: float | None, tpm: float | None) -> None:
        self._rpm = rpm
        self._tpm = tpm
        self._queues: dict[str, _Queue] = {}

    def of(self, gate: str) -> _Queue:
        """The calls to one provider."""
        if gate not in self._queues:
            self._queues[gate] = _Queue(HardLimits(self._rpm, self._tpm, window=MINUTE))
        return self._queues[gate]


@dataclass(slots=True, eq=False)
class _Call:
    number: int
    size: int
    queue: _Queue
    tell: Tell
    taken: Taken | None = None


class _Queue:
    """Calls of all processes to one provider, in the order in which they asked."""

    def __init__(self, limits: HardLimits) -> None:
        self.limits = limits
        self.news = News()
        self._waiting: deque[_Call] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def join(self, call: _Call) -> None:
        self._waiting.append(call)
        self.pump()

    def quit(self, call: _Call) -> None:
        """Forget a call that has no leave yet."""
        self._waiting.remove(call)

    def pump(self) -> None:
        """Give leave to whoever may go, and come back when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            call = self._waiting[0]
            wait = self.limits.delay(call.size)
            if wait > 0:
                if wait < math.inf:
                    self._timer = asyncio.get_running_loop().call_later(wait, self.pump)
                return
            self._waiting.popleft()
            call.taken = self.limits.take(call.size)
            call.tell({"leave": call.number})


class Asker:
    """One of the processes that ask, as the one that counts sees it; ``tell`` sends it a line."""

    def __init__(self, limits: LimitsForAll, tell: Tell) -> None:
        self._limits = limits
        self._tell = tell
        self._calls: dict[int, _Call] = {}

    def heard(self, line: Mapping[str, Any]) -> None:
        """Take in what the process has said; lines of another kind are not for here."""
        if "news" in line:
            now = asyncio.get_running_loop().time()
            fresh = self._limits.of(line["gate"]).news.fresh(line["state"], now)
            self._tell({"leave": line["news"], "tell": fresh})
        elif "ask" in line:
            call = _Call(line["ask"], line["size"], self._limits.of(line["gate"]), self._tell)
            self._calls[call.number] = call
            call.queue.join(call)
        elif "went" in line:
            call = self._calls[line["went"]]
            assert call.taken is not None
            call.queue.limits.sent(call.taken)
            call.queue.pump()
        elif "used" in line:
            call = self._calls.pop(line["used"])
            assert call.taken is not None
            usage = None
            if line["usage"] is not None:
                usage = Usage(input_tokens=line["usage"][0], output_tokens=line["usage"][1])
            call.queue.limits.settle(call.taken, usage, spent=line["spent"])
            call.queue.pump()
        elif "back" in line:
            call = self._calls.pop(line["back"])
            if call.taken is None:
                call.queue.quit(call)
            else:
                call.queue.limits.give_back(call.taken)
            call.queue.pump()

    def gone(self) -> None:
        """The process is no more: what it asked for is free, what it had leave for counts as used."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if call.taken is None:
                call.queue.quit(call)
            else:
                call.queue.limits.settle(call.taken, None)
        for queue in {call.queue for call in calls.values()}:
            queue.pump()


# -- in a process that asks


class Leave:
    """What a process asks for and gets, for all of its gates. Used in one event loop.

    ``tell`` sends a line to the one that counts.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.numbers = itertools.count(1)
        self.asking: dict[int, AskedLimits] = {}
        self.telling: dict[int, Callable[[], None]] = {}

    def heard(self, line: Mapping[str, Any]) -> None:
        """There is leave for a call, which may have been given back in the meantime; or not, for a notice."""
        if "tell" in line:
            say = self.telling.pop(line["leave"])
            if line["tell"]:
                say()
            return
        limits = self.asking.get(line["leave"])
        if limits is not None:
            limits.got()


class AskedLimits:
    """The limits of a gate that another process keeps.

    It is asked for one call at a time, the one that is next. Leave goes with the gate: whichever call of that
    size is next when it comes may use it.
    """

    def __init__(self, gate: str, leave: Leave, *, wants_size: bool) -> None:
        self.wants_size = wants_size
        self.wake: Callable[[], None] = _nothing
        self._gate = gate
        self._leave = leave
        self._asked: Taken | None = None
        self._got = False

    def delay(self, size: int) -> float:
        """Zero if there is leave for a call of ``size``; asks for it where that has not been done."""
        if self._asked is not None and self._asked.size != size:
            self.release()
        if self._asked is None:
            self._asked = Taken(size, number=next(self._leave.numbers))
            self._leave.asking[self._asked.number] = self
            self._leave.tell({"ask": self._asked.number, "gate": self._gate, "size": size})
        return 0.0 if self._got else math.inf

    def got(self) -> None:
        """Leave has come."""
        self._got = True
        self.wake()

    def take(self, size: int) -> Taken:
        """Use the leave that there is."""
        taken = self._forget()
        assert taken is not None
        assert taken.size == size
        return taken

    def sent(self, taken: Taken) -> None:
        """The call is being sent."""
        self._leave.tell({"went": taken.number})

    def settle(self, taken: Taken, usage: Usage | None, *, spent: bool = True) -> None:
        """The call is over; without ``usage`` it has used what was guessed, or nothing if not ``spent``."""
        tokens = None if usage is None else [usage.input_tokens, usage.output_tokens]
        self._leave.tell({"used": taken.number, "usage": tokens, "spent": spent})

    def release(self) -> None:
        """Give back what was asked for."""
        asked = self._forget()
        if asked is not None:
            self._leave.tell({"back": asked.number})

    def _forget(self) -> Taken | None:
        asked, self._asked, self._got = self._asked, None, False
        if asked is not None:
            del self._leave.asking[asked.number]
        return asked


class AskedNotices:
    """Notices of a gate that are told unless another process has told the same."""

    def __init__(self, gate: str, leave: Leave, tell: Callable[[str], None]) -> None:
        self._gate = gate
        self._leave = leave
        self._tell = tell

    def tell(self, state: str, text: str) -> None:
        """Tell ``text`` if ``state`` is news to the process that counts."""
        number = next(self._leave.numbers)
        self._leave.telling[number] = lambda: self._tell(text)
        self._leave.tell({"news": number, "gate": self._gate, "state": state})


def _nothing() -> None:
    """Wakes nobody: no call waits yet."""
