"""Planner with full knowledge of the household that uses only the offered actions."""

from collections import deque

from mcp_servers.world.household import Furniture, Game, Thing

DEVICES = {"clean": "cleans", "hot": "heats", "cold": "cools"}
VERBS = {"clean": "clean", "hot": "heat", "cold": "cool"}


class Planner:
    """Attempt at one task."""

    def __init__(self, game: Game) -> None:
        self.game = game

    def solve(self) -> None:
        """Reach the goal."""
        goal, house = self.game.goal, self.game.house
        things = [thing.name for thing in house.things.values() if thing.kind == goal.kind]
        if goal.task == "find":
            self._pick_up(things[0])
        elif goal.task == "examine":
            self._pick_up(things[0])
            lamp = next(piece for piece in house.furniture.values() if piece.able.lights)
            self._go(lamp)
            self._do(f"turn on {lamp.name}")
            self._do(f"examine {things[0]}")
        else:
            self._place_all(things)

    def _place_all(self, things: list[str]) -> None:
        goal, house = self.game.goal, self.game.house
        targets = [piece for piece in house.furniture.values() if piece.kind == goal.where]
        # The furniture that holds most of them already.
        target = max(
            targets, key=lambda piece: sum(house.things[name].place == piece.name for name in things)
        )
        if goal.number > 1:
            there = [name for name in things if house.things[name].place == target.name]
            things = [name for name in things if name not in there][: goal.number - len(there)]
        for thing in things[: goal.number]:
            if goal.state == "sliced":
                self._pick_up(next(piece.name for piece in house.things.values() if piece.able.cuts))
            self._pick_up(thing)
            self._prepare(house.things[thing])
            self._go(target)
            self._open(target.name)
            self._do(f"put {thing} {target.able.word} {target.name}")

    def _prepare(self, thing: Thing) -> None:
        state, house = self.game.goal.state, self.game.house
        if state == "sliced":
            knife = next(piece.name for piece in house.carried() if piece.able.cuts)
            self._do(f"slice {thing.name} with {knife}")
        elif state:
            device = next(piece for piece in house.furniture.values() if getattr(piece.able, DEVICES[state]))
            self._go(device)
            self._do(f"{VERBS[state]} {thing.name} with {device.name}")

    def _pick_up(self, name: str) -> None:
        house = self.game.house
        furniture = house.things[name].place
        if furniture is None:
            return
        self._go(house.furniture[furniture])
        self._open(furniture)
        self._do(f"take {name} from {furniture}")

    def _open(self, furniture: str) -> None:
        if not self.game.house.furniture[furniture].shows:
            self._do(f"open {furniture}")

    def _go(self, furniture: Furniture) -> None:
        for room in self._way(furniture.room):
            self._do(f"go to {room}")
        if self.game.house.at != furniture.name:
            self._do(f"go to {furniture.name}")

    def _way(self, room: str) -> list[str]:
        """Return the rooms on the shortest path."""
        house = self.game.house
        ways: deque[list[str]] = deque([[house.room]])
        while ways:
            way = ways.popleft()
            if way[-1] == room:
                return way[1:]
            ways.extend([*way, next_room] for next_room in house.doors[way[-1]] if next_room not in way)
        raise AssertionError(f"no way to the {room}")

    def _do(self, action: str) -> None:
        if not self.game.over:
            assert action in self.game.actions(), (action, self.game.actions())
            self.game.act(action)
