"""A GRU in place of the LSTM of sb3-contrib's recurrent policies: ``policy_kwargs={"memory": "gru"}``."""

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn


class GRULikeLSTM(nn.GRU):
    """PyTorch's GRU with the states of an LSTM, as sb3-contrib's policies and buffers pass them on.

    A GRU has no cell states. They keep their shape, and their value of zero.
    """

    def forward(  # type: ignore[override]
        self, input: th.Tensor, hx: tuple[th.Tensor, th.Tensor]
    ) -> tuple[th.Tensor, tuple[th.Tensor, th.Tensor]]:
        """Compute whole sequences.

        :param input: shape ``(steps, sequences, features)``
        :param hx: the hidden states and the unused cell states, each of shape ``(layers, sequences, size)``
        :return: the outputs of the last layer, shape ``(steps, sequences, size)``, and the states after the last step
        """
        output, hidden = super().forward(input, hx[0])
        return output, (hidden, hx[1])


def use_gru(policy: ActorCriticPolicy, lr_schedule: Schedule) -> None:
    """Replace the LSTMs of a new ``RecurrentActorCriticPolicy``, and its optimizer."""
    for name in ("lstm_actor", "lstm_critic"):
        lstm = getattr(policy, name)
        if lstm is not None:
            sizes = lstm.input_size, lstm.hidden_size, lstm.num_layers
            setattr(policy, name, GRULikeLSTM(*sizes, bias=lstm.bias, dropout=lstm.dropout))
    optimizer_class = policy.optimizer_class
    policy.optimizer = optimizer_class(policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs)  # type: ignore[call-arg]
