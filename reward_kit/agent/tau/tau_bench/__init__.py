"""Write a bundle with the benchmark's own texts: ``reward-kit port tau-bench``.

The instructions, policy, tool descriptions and gold actions are copied from the source word by word. The code
of the tools, the reward and the tables are copied from ``tau_retail_task``. No code of the source is run.
"""
