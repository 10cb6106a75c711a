"""Games of textarena: tasks by name, and the game that an agent plays."""

import importlib
import random
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from random import Random
from typing import Any, Final, Self

from agentflow._typeguards import is_list, is_list_or_tuple, is_mapping, is_object
from agentflow.errors import AgentFlowError, ConfigurationError, error_line
from agentflow.extras import missing_extra
from agentflow.readers._reading import Located, take_option
from agentflow.readers._settings import ParsedSource, ReaderSettings
from agentflow.settings import nearest
from agentflow.trace import Task

SOURCE: Final = "textarena"
"""`source` of these tasks, and the field with what makes their game."""
_random_lock: Final = threading.RLock()
"""Games draw from the generator of the module `random`, which all threads share."""


class GameFailure(AgentFlowError):
    """A game could not be made, or raised."""


def read_textarena(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over games: `textarena:NAME?size=100&seed=1&players=2`; other options configure the game.

    :raises ConfigurationError: one line, if the library is missing, or a name or an option is unknown.
    """
    size = take_option(source, "size", int, 100)
    seed = take_option(source, "seed", int, 0)
    players = take_option(source, "players", int, 2)
    for number in range(size):
        drawn = Random(f"{seed}/{number}").getrandbits(31)
        origin = {"game": source.target, "seed": drawn, "players": players, "config": source.options}
        try:
            game = TextGame(source.target, seed=drawn, players=players, config=source.options)
        except GameFailure as error:
            raise ConfigurationError(str(error)) from None
        with game:
            question = game.observation.strip() or source.target
        yield (
            f"textarena:{source.target}: task {number}",
            Task(
                index=0,
                id=f"{source.target}/{seed}/{number}",
                question=question,
                metadata={"source": SOURCE, SOURCE: origin},
            ),
        )


class TextGame:
    """A game of textarena, one move at a time. See docs/readers.md.

    Equal seeds and moves give equal games, also if games run in several threads.

    Example::

        with open_text_game(task) as game:
            while not game.done:
                game.step(await choose(game.player, game.observation))
    """

    def __init__(
        self, name: str, *, seed: int, players: int = 2, config: Mapping[str, Any] | None = None
    ) -> None:
        """:param name: its name in textarena, such as `TicTacToe-v0`.
        :param players: number of players; a game for one is begun with one.
        :param config: its other options.
        :raises GameFailure: if it can't be made.
        """
        self.name = name
        """Its name."""
        self.player = 0
        """Player whose turn it is."""
        self.observation = ""
        """Text that this player sees; most games repeat everything before it."""
        self.done = False
        """The game is over."""
        self.rewards: dict[int, float] = {}
        """Reward of each player, once the game is over."""
        self.info: dict[int, dict[str, Any]] = {}
        """Facts about each player, once the game is over: `role`, `invalid_move`, `turn_count`."""
        self._state = Random(seed).getstate()
        with self._own_randomness("it can't be begun"):
            self._game: Any = _library(name).make(name, **(config or {}))
            self._game.reset(num_players=players, seed=seed)
            self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def step(self, action: str) -> None:
        """Make a move for the player whose turn it is.

        :raises GameFailure: if the game is over, or raises.
        """
        if self.done:
            raise GameFailure(f"textarena:{self.name}: the game is over")
        with self._own_randomness("a move failed"):
            self.done, _ = self._game.step(action=action)
            if self.done:
                self._end()
            else:
                self._look()

    def close(self) -> None:
        """End the game; a second call does nothing."""
        if not self.done:
            self.done = True
            self._end()

    def _look(self) -> None:
        player, seen = self._game.get_observation()
        self.player = int(player)
        self.observation = seen if isinstance(seen, str) else _as_text(seen)

    def _end(self) -> None:
        rewards, info = self._game.close()
        self.observation = ""
        if is_mapping(rewards):
            numeric_rewards = {
                int(player): float(reward)
                for player, reward in rewards.items()
                if isinstance(reward, int | float)
            }
            self.rewards = {player: reward for player, reward in numeric_rewards.items() if isfinite(reward)}
        if is_mapping(info):
            self.info = {int(player): facts for player, facts in info.items() if is_object(facts)}

    @contextmanager
    def _own_randomness(self, problem: str) -> Generator[None]:
        with _random_lock:
            before = random.getstate()
            random.setstate(self._state)
            try:
                yield
            except (ConfigurationError, GameFailure):
                raise
            except Exception as error:  # boundary: games raise many types on the text of a model
                raise GameFailure(f"textarena:{self.name}: {problem}: {error_line(error)[:200]}") from error
            finally:
                self._state = random.getstate()
                random.setstate(before)


@contextmanager
def open_text_game(task: Task) -> Generator[TextGame]:
    """Begin the game of a task, and end it with the block. See docs/readers.md.

    :raises GameFailure: if the task has no game, or it can't be made.
    """
    origin: object = task.metadata.get(SOURCE)
    if not is_object(origin) or not isinstance(origin.get("game"), str):
        raise GameFailure(f"{task.id} is not a task of textarena; read it with textarena:NAME")
    config: object = origin.get("config")
    with TextGame(
        origin["game"],
        seed=int(origin.get("seed", 0)),
        players=int(origin.get("players", 2)),
        config=config if is_object(config) else {},
    ) as game:
        yield game


def _library(name: str) -> Any:  # noqa: ANN401 - a library without types
    where = f"textarena:{name}"
    try:
        library: Any = importlib.import_module("textarena")
        registry: dict[str, Any] = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    except ImportError:
        raise ConfigurationError(missing_extra(where, "games")) from None
    if name not in registry:
        raise ConfigurationError(f"{where}: there is no such game{nearest(name, registry)}")
    return library


def _as_text(seen: object) -> str:
    """Return the messages of a game that has no wrapper."""
    messages = seen if is_list(seen) else []
    return "\n".join(
        str(message[1]) for message in messages if is_list_or_tuple(message) and len(message) > 1
    )
