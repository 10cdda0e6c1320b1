"""The backends, which compute rollouts and updates."""
