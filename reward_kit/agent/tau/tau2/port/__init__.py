"""``reward-kit port tau2``: the domains of τ²-bench as bundles, from the pinned package or a checkout."""
