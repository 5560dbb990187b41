"""The tools of the agent: a library's lending desk.

Debug them in a browser with ``uvicorn NAME.tools:app --reload`` (in the folder above), or call one by hand:

    reward-kit tools NAME --call find_books '{"title": "solaris"}'
"""

from typing import Any

from reward_kit.agent import Database, ToolError, ToolRegistry

R = ToolRegistry("library")


# The model sees the function's name, docstring and annotated parameters. ``db`` is filled in and not shown.
@R.tool
async def find_books(title: str, db: Database) -> list[Any]:
    """Find books by a part of their title, and who has borrowed them."""
    return await db.fetch_all(
        "SELECT id, title, author, member AS borrowed_by FROM books LEFT JOIN loans ON book_id = id"
        " WHERE title LIKE '%' || :title || '%'",
        {"title": title},
    )


# One call is one transaction: a tool that raises leaves no trace in the data.
@R.tool
async def lend_book(book_id: int, member: str, db: Database) -> str:
    """Lend a book to a member."""
    if await db.fetch_val("SELECT 1 FROM books WHERE id = :id", {"id": book_id}) is None:
        raise ToolError(f"there is no book {book_id}")  # the agent reads this text and may go on
    if await db.fetch_val("SELECT 1 FROM loans WHERE book_id = :id", {"id": book_id}):
        raise ToolError(f"book {book_id} is lent already")
    await db.execute("INSERT INTO loans VALUES (:id, :member)", {"id": book_id, "member": member})
    return "lent"


app = R.create_fastapi_app()
