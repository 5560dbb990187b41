"""Files for the new bundle, beside the tools and the reward of ``tau_retail_task``."""
