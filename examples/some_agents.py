import random

from reward_kit.agent.players.agents.replay import GoldAgent


class Hasty(GoldAgent):
    """Does the right thing or, sometimes, nothing."""

    idle = 0.3

    async def respond(self, rollout):
        chance = random.Random(f"{type(self).__name__} {rollout.row_id} {rollout.index}")
        if chance.random() < self.idle:
            return "Done."
        return await super().respond(rollout)


class Careful(Hasty):
    idle = 0.15


class Lazy(Hasty):
    idle = 0.6
