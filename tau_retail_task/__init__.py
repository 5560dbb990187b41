"""The retail domain of τ-bench as a task bundle: a shop's orders, its tools, its policy and its reward."""
