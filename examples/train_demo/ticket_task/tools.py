from typing import Literal

from reward_kit.agent import ToolRegistry

R = ToolRegistry("ticket_office")


@R.tool
def book(seat: Literal["window", "aisle", "middle", "table"], db) -> str:
    """Book a seat.

    Args:
        seat: window, aisle, middle or table
    """
    db.execute("INSERT INTO bookings VALUES (:seat)", {"seat": seat})
    return "booked"
