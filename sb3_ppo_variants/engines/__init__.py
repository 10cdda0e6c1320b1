"""The engines, which compute rollouts and updates."""
