"""The tools of the user: what Ana can do on her phone."""

from typing import Literal

from reward_kit.agent import ToolRegistry

R = ToolRegistry("phone")


@R.tool
def check_status_bar(db):
    """Look at the top of the screen: airplane mode, mobile data, roaming and signal."""
    return db.fetch_one("SELECT airplane_mode, mobile_data, roaming, signal FROM phone")


@R.tool
def toggle(setting: Literal["airplane_mode", "mobile_data", "roaming"], db):
    """Switch a setting of the phone on or off."""
    db.execute(f"UPDATE phone SET {setting} = 1 - {setting}")  # noqa: S608 - one of the three
    return db.fetch_one("SELECT airplane_mode, mobile_data, roaming FROM phone")


@R.tool
def restart(db):
    """Restart the phone."""
    db.execute("UPDATE phone SET restart_needed = 0")
    return "The phone has restarted."


@R.after_call
def find_network(db):
    """The phone loses a suspended line at once, and finds a resumed one after a restart."""
    db.execute(
        "UPDATE phone SET restart_needed = 1, signal = 0 FROM lines"
        " WHERE lines.number = phone.number AND lines.status = 'suspended'"
    )
    db.execute("UPDATE phone SET signal = NOT airplane_mode AND NOT restart_needed")


@R.setup
def phone_state(db, airplane_mode: int = 0, mobile_data: int = 1):
    """The settings of the phone when the customer calls."""
    db.execute("UPDATE phone SET airplane_mode = ?, mobile_data = ?", [airplane_mode, mobile_data])
    find_network(db)


@R.check
def can_surf(db, abroad: bool = False):
    """True if web pages load."""
    query = """
        SELECT signal AND mobile_data AND used_gb < data_gb
            AND (phone.roaming AND lines.roaming OR NOT :abroad)
        FROM phone JOIN lines USING (number) JOIN plans ON plans.name = lines.plan"""
    return bool(db.execute(query, {"abroad": abroad}).scalar())
