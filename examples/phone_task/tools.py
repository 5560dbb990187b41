"""The tools of the agent: customers, plans and lines."""

from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("phone_support")


@R.tool
def find_line(customer: str, db):
    """Find the line of a customer: its number, plan, status, roaming and data used."""
    line = db.fetch_one("SELECT * FROM lines WHERE customer = :customer", {"customer": customer})
    if line is None:
        raise ToolError(f"there is no customer {customer!r}")
    return line


@R.tool
def list_plans(db):
    """List all plans with their data and price."""
    return db.fetch_all("SELECT * FROM plans ORDER BY price")


@R.tool
def change_plan(number: str, plan: str, db):
    """Move a line to another plan."""
    if db.fetch_one("SELECT 1 FROM plans WHERE name = :plan", {"plan": plan}) is None:
        raise ToolError(f"there is no plan {plan!r}")
    return change(db, number, "plan", plan)


@R.tool
def resume_line(number: str, db):
    """Resume a suspended line. The phone has to be restarted to find the network again."""
    return change(db, number, "status", "active")


@R.tool
def allow_roaming(number: str, db):
    """Allow a line to use networks abroad."""
    return change(db, number, "roaming", 1)


def change(db, number, column, value):
    """Set a column of a line."""
    query = f"UPDATE lines SET {column} = :value WHERE number = :number"  # noqa: S608 - a column of ours
    if db.execute(query, {"value": value, "number": number}).rowcount == 0:
        raise ToolError(f"there is no line {number!r}")
    return f"{column} of {number} is {value}"


@R.setup
def line_state(number: str, db, status: str = "active", used_gb: int = 1):
    """The state of a line when the customer calls."""
    values = {"number": number, "status": status, "used_gb": used_gb}
    db.execute("UPDATE lines SET status = :status, used_gb = :used_gb WHERE number = :number", values)
