"""Policy kinds: how a step of a rollout and a minibatch are evaluated."""
