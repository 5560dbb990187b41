from typing import Literal

from reward_kit.agent import ToolRegistry

R = ToolRegistry("ticket_office")


@R.tool
def book(passenger: str, seat: Literal["window", "aisle"], db) -> str:
    """Book a seat.

    Args:
        passenger: the name
        seat: window or aisle
    """
    sql = "INSERT INTO bookings VALUES (:passenger, :seat)"
    db.execute(sql, {"passenger": passenger, "seat": seat})
    return "booked"
