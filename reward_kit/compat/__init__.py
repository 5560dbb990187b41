"""The modules of Reward Kit 0.2 to 0.4, kept for their users.

``reward_kit`` has this folder on its ``__path__``: ``reward_kit/compat/auth.py`` is imported as
``reward_kit.auth``, as in the earlier releases. Modules in here import each other relatively.
"""
