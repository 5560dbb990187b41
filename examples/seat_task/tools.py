from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("seat_tools")


@R.tool
async def free_seats(db) -> list[int]:
    """List the seats that are still free."""
    return [row.number for row in await db.fetch_all("SELECT number FROM seats WHERE passenger IS NULL")]


@R.tool
async def take_seat(number: int, passenger: str, db) -> str:
    """Reserve a seat for a passenger."""
    sql = "UPDATE seats SET passenger = :passenger WHERE number = :number AND passenger IS NULL"
    if (await db.execute(sql, {"number": number, "passenger": passenger})).rowcount == 0:
        raise ToolError(f"seat {number} is not free")
    return "reserved"


app = R.create_fastapi_app()  # uvicorn seat_task.tools:app --reload
