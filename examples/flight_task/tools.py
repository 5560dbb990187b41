# tools.py
from reward_kit.agent import ToolRegistry

R = ToolRegistry("flight_tools")

@R.tool(description="List flights", parameters={"origin": str, "dest": str, "date": str})
async def search_flights(origin, dest, date, db):
    return await db.fetch_all("""
        SELECT id, depart, arrive, seats_available
        FROM flights
        WHERE origin=:o AND dest=:d AND date(depart)=:date AND seats_available>0
    """, {"o": origin, "d": dest, "date": date})

@R.tool(description="Reserve seat", parameters={"flight_id": int, "passenger": str})
async def create_booking(flight_id, passenger, db):
    bid = await db.fetch_val("SELECT hex(randomblob(4))")
    await db.execute("INSERT INTO bookings(id, flight_id, passenger, status)"
                     "VALUES(:bid,:fid,:pass,'reserved')",
                     {"bid": bid, "fid": flight_id, "pass": passenger})
    return {"booking_id": bid}

@R.tool(description="Pay for booking", parameters={"booking_id": str})
async def pay_booking(booking_id, db):
    await db.execute("UPDATE bookings SET status='paid' WHERE id=:bid",
                     {"bid": booking_id})
    return {"ok": True}

app = R.create_fastapi_app()  # uvicorn my_task.tools:app --reload
