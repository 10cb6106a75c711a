# pyright: basic, reportMissingImports=false
"""Serve an environment made with OpenEnv; print its address. The reward of a message is its length; three end an episode."""

import socket

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    message: str


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **given: object
    ) -> EchoObservation:
        self._state = State(episode_id=episode_id or "episode", step_count=0)
        return EchoObservation(message=f"seed {seed}", done=False)

    def step(self, action: EchoAction, timeout_s: float | None = None, **given: object) -> EchoObservation:
        self._state.step_count += 1
        return EchoObservation(
            message=action.message, reward=float(len(action.message)), done=self._state.step_count == 3
        )

    @property
    def state(self) -> State:
        return self._state


app = create_fastapi_app(Echo, EchoAction, EchoObservation, max_concurrent_envs=4)
opened = socket.socket()
opened.bind(("127.0.0.1", 0))
opened.listen()
print(f"http://127.0.0.1:{opened.getsockname()[1]}", flush=True)  # noqa: T201
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[opened])
