"""The tools of the retail domain: ``R`` for rollouts, ``app`` for trying them over HTTP.

``uvicorn tau_retail_task.tools:app --reload`` from the folder above serves them.
"""

from reward_kit.agent import ToolRegistry

from . import conversation, orders, products, users

R = ToolRegistry("tau_retail", "Customer service of an online shop", parallel_tool_calls=False)
for module in (conversation, orders, products, users):
    R.include(module.R)
R.tools = dict(sorted(R.tools.items()))  # the order in which the benchmark offers them

app = R.create_fastapi_app()
