"""A small checkout in the layout of τ²-bench: its domain ``mock`` is a library, and a reader with a bag."""

import json
from pathlib import Path
from typing import Any

DATA_MODEL = """
import datetime
from enum import Enum
from typing import Dict, List

from loguru import logger
from pydantic import BaseModel

from tau2.domains.mock.utils import DB_PATH
from tau2.environment.db import DB
from tau2.utils.pydantic_utils import BaseModelNoExtra


class Condition(str, Enum):
    NEW = "new"
    OLD = "old"


class Book(BaseModel):
    title: str
    condition: Condition
    fee: float
    tags: List[str]


class Loan(BaseModelNoExtra):
    loan_id: str
    book: str
    due: datetime.date


class LibraryDB(DB):
    books: Dict[str, Book]
    loans: List[Loan]


def get_db():
    return LibraryDB.load(DB_PATH)
"""
TOOLS = '''
import uuid
from datetime import timedelta
from typing import List

from tau2.domains.mock.data_model import Book, Condition, LibraryDB, Loan
from tau2.domains.mock.utils import get_today
from tau2.environment.toolkit import ToolKitBase, ToolType, is_discoverable_tool, is_tool


class LibraryTools(ToolKitBase):
    """The tools of the librarian."""

    db: LibraryDB

    def __init__(self, db: LibraryDB) -> None:
        super().__init__(db)
        self.asked = {}

    @is_tool(ToolType.READ)
    def get_book(self, name: str) -> Book:
        """
        Show a book.

        All of it.

        Args:
            name: The name, such as 'moby'.
              Lower case.

        Returns:
            The book.
        """
        if name not in self.db.books:
            raise ValueError(f"Book {name} not found")
        return self.db.books[name]

    @is_tool(ToolType.READ)
    def count_books(self) -> int:
        """Count the books."""
        return len(self.db.books)

    @is_tool(ToolType.READ)
    def list_loans(self) -> List[Loan]:
        """List the loans."""
        return self.db.loans

    @is_tool(ToolType.WRITE)
    def lend(self, name: str, days: int = 14) -> Loan:
        """Lend a book.

        Args:
            name: The name.
            days: How long.
        """
        book = self.db.books[name]
        loan = Loan(loan_id=f"L{uuid.uuid4().hex[:8]}", book=name, due=get_today() + timedelta(days=days))
        self.db.loans.append(loan)
        book.tags.append("lent")
        return loan

    @is_tool(ToolType.WRITE)
    def give_back(self, name: str) -> str:
        """Take a book back."""
        self.db.loans = [loan for loan in self.db.loans if loan.book != name]
        self.db.books[name].tags.remove("lent")
        return "Thank you"

    @is_tool(ToolType.WRITE)
    def describe(self, name: str, condition: str, fee: float = None) -> str:
        """Note the condition of a book."""
        book = self.db.books[name]
        book.condition = condition
        if fee is not None:
            book.fee = fee
        return f"It is {Condition(condition).value} now"

    @is_tool(ToolType.WRITE)
    def add_book(self, name: str, title: str) -> Book:
        """Buy a book."""
        self.db.books[name] = Book(title=title, condition="new", fee=1, tags=[])
        return self.db.books[name]

    @is_tool(ToolType.WRITE)
    def drop_book(self, name: str) -> str:
        """Throw a book away."""
        self.db.books.pop(name)
        return "gone"

    @is_tool(ToolType.GENERIC, mutates_state=True)
    def ask(self, word: str) -> str:
        """Count the questions."""
        self.asked[word] = self.asked.get(word, 0) + 1
        return str(self.asked[word])

    @is_discoverable_tool(ToolType.WRITE)
    def burn_8371(self, name: str) -> str:
        """Burn a book."""
        del self.db.books[name]
        return "ashes"

    def rename(self, name: str, title: str) -> None:
        self.db.books[name].title = title

    def assert_lent(self, name: str) -> bool:
        """Check a book."""
        return "lent" in self.db.books[name].tags
'''
USER_DATA_MODEL = """
from typing import List

from tau2.environment.db import DB
from tau2.utils.pydantic_utils import BaseModelNoExtra


class Card(BaseModelNoExtra):
    color: str = "red"


class Bag(BaseModelNoExtra):
    things: List[str] = []
    card: Card = Card()
    lent: int = 0


class ReaderDB(DB):
    bag: Bag
"""
USER_TOOLS = '''
from tau2.domains.mock.user_data_model import Card, ReaderDB
from tau2.environment.toolkit import ToolKitBase, ToolType, is_tool


class ReaderUserTools(ToolKitBase):
    db: ReaderDB
    spare: Card = Card(color="blue")

    @is_tool(ToolType.READ)
    def look(self) -> str:
        """Look into the bag."""
        bag = self.db.bag
        return f"{bag.things} {bag.card.color} {bag.lent}"

    @is_tool(ToolType.WRITE)
    def put(self, thing: str) -> str:
        """Put something into the bag."""
        self.db.bag.things.append(thing)
        return "in"

    @is_tool(ToolType.WRITE)
    def swap_card(self) -> str:
        """Take the other card."""
        self.db.bag.card = self.spare
        return "swapped"

    def scratch(self) -> None:
        self.spare.color = "scratched"
        self.db.bag.things.append("knife")

    def assert_in_bag(self, thing: str) -> bool:
        """Check the bag."""
        return thing in self.db.bag.things
'''
ENVIRONMENT = '''
from tau2.domains.mock.data_model import Condition, LibraryDB
from tau2.environment.environment import Environment
from tau2.utils import load_file


class LibraryEnvironment(Environment):
    def sync_tools(self):
        """The reader knows the number of loans."""
        if self.tools.db.books["moby"].condition == Condition.OLD:
            raise ValueError("moby falls apart")
        self.user_tools.db.bag.lent = len(self.tools.db.loans)
'''
UTILS = """
from datetime import date

from tau2.utils.utils import DATA_DIR

DB_PATH = DATA_DIR / "db.json"


def get_today() -> date:
    return date(2025, 2, 25)
"""
JUDGE = """
class NLAssertionsEvaluator:
    def evaluate_nl_assertions(cls, trajectory, nl_assertions):
        trajectory_str = ""
        system_prompt = '''
        Judge {it}.
        '''
        user_prompt = f'''
        said:
        {trajectory_str}
        wanted: {nl_assertions}
        '''
"""
SOLO = """
AGENT_SOLO_INSTRUCTION = "Work, then {stop_function_name}."
SYSTEM_PROMPT_SOLO = "{agent_instruction} {domain_policy} {ticket}"


def done():
    '''Say that it is done.'''


"""
LENT = {"action_id": "a", "name": "lend", "arguments": {"name": "moby"}}
PUT = {"action_id": "b", "requestor": "user", "name": "put", "arguments": {"thing": "moby"}}


def task(key: str, state: Any = None, **criteria: Any) -> dict[str, Any]:
    """A task in which the reader borrows a book."""
    return {
        "id": key,
        "user_scenario": {"persona": "Shy", "instructions": "Borrow Moby Dick.\nPack it."},
        "ticket": "The reader wants Moby Dick.",
        "initial_state": state,
        "evaluation_criteria": {"actions": [LENT, PUT], **criteria} if criteria else None,
    }


def call(side: str, function: str, /, **arguments: Any) -> dict[str, Any]:
    return {"env_type": side, "func_name": function, "arguments": arguments}


AGED = {"name": "emma", "condition": "old"}
HISTORY = [
    {"role": "user", "content": "Emma is worn."},
    {"role": "assistant", "tool_calls": [{"id": "c1", "name": "describe", "arguments": AGED}]},
    {"role": "tool", "id": "c1", "content": "It is old now"},
    {"role": "assistant", "content": "I have noted it."},
]
STATES = {
    "setup": {
        "initialization_data": {"agent_data": {"books": {"moby": {"fee": 2}}}},
        "initialization_actions": [
            call("assistant", "rename", name="emma", title="Emma W."),
            call("user", "scratch"),
        ],
    },
    "history": {"message_history": HISTORY},
}
TASKS = [
    task("lend", reward_basis=["DB", "COMMUNICATE"], communicate_info=["14"]),
    task("[pack]me|PERSONA:None", reward_basis=["ENV_ASSERTION", "ACTION"], env_assertions=[
        call("user", "assert_in_bag", thing="moby"),
        {**call("assistant", "assert_lent", name="emma"), "assert_value": False},
    ]),
    task("setup", {"initialization_actions": STATES["setup"]["initialization_actions"]}, reward_basis=["DB"]),
    task("history", STATES["history"], actions=[], reward_basis=["DB"]),
    task("said", actions=[], nl_assertions=["It was polite."], reward_basis=["DB", "NL_ASSERTION"]),
    task("free"),
]  # fmt: skip
BOOKS = {
    name: {"title": title, "condition": "new", "fee": 1, "tags": []}
    for name, title in (("moby", "Moby Dick"), ("emma", "Emma"))
}
SPLITS = {"base": [one["id"] for one in TASKS], "train": ["lend"]}


def put(folder: Path, path: str, text: str) -> None:
    """Write a file below ``folder``."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", newline="\n")


def files() -> dict[str, str]:
    """The files of the checkout, below ``src/tau2`` and ``data/tau2``."""
    code, data = "code/domains/mock", "data/domains/mock"
    stops = "".join(f'{name} = "###{name}###"\n' for name in ("STOP", "TRANSFER", "OUT_OF_SCOPE"))
    frame = "{global_user_sim_guidelines_with_persona}\n<scenario>{instructions}</scenario>"
    agent = "<i>{agent_instruction}</i>\n<policy>\n{domain_policy}\n</policy>"
    greeting = 'AssistantMessage(role="assistant", content="Good day!", cost=0.0)'
    return {
        f"{code}/data_model.py": DATA_MODEL,
        f"{code}/tools.py": TOOLS,
        f"{code}/user_data_model.py": USER_DATA_MODEL,
        f"{code}/user_tools.py": USER_TOOLS,
        f"{code}/environment.py": ENVIRONMENT,
        f"{code}/utils.py": UTILS,
        "code/agent/llm_agent.py": SOLO + "AGENT_INSTRUCTION = 'Serve {them}.'\n"
        f'SYSTEM_PROMPT = """\n{agent}\n""".strip()\n',
        "code/user/user_simulator.py": f'SYSTEM_PROMPT = """\n{frame}\n""".strip()\n',
        "code/user/user_simulator_base.py": stops,
        "code/orchestrator/orchestrator.py": f"DEFAULT_FIRST_AGENT_MESSAGE = {greeting}\n",
        "code/evaluator/evaluator_nl_assertions.py": JUDGE,
        "data/user_simulator/simulation_guidelines.md": "Be a reader.<PERSONA_GUIDELINES>",
        "data/user_simulator/simulation_guidelines_tools.md": "Be a {busy} reader.<PERSONA_GUIDELINES>",
        f"{data}/policy.md": "Lend one book.\n",
        f"{data}/policy_solo.md": "Work alone.\n",
        f"{data}/db.json": json.dumps({"books": BOOKS, "loans": []}),
        f"{data}/user_db.toml": '[bag]\nthings = ["pen"]\n',
        f"{data}/tasks.json": json.dumps(TASKS),
        f"{data}/split_tasks.json": json.dumps(SPLITS),
    }


def write_checkout(folder: Path) -> Path:
    """A checkout at ``folder``."""
    put(folder, "LICENSE", "Anybody may use this library.\n")
    for path, text in files().items():
        place = path.replace("code/", "src/tau2/", 1).replace("data/", "data/tau2/", 1)
        put(folder, place if path.startswith("code/") else path.replace("data/", "data/tau2/", 1), text)
    return folder
