"""A supervisor as a pure function of its events, without tasks or time."""

from dataclasses import dataclass, field

from agentflow.actors import AutoShutdown, ChildSpec, Restart, Strategy


@dataclass
class ReferenceChild:
    """One child."""

    spec: ChildSpec
    running: bool = True
    starts: int = 1


@dataclass
class ReferenceSupervisor:
    """OTP's documented rules, written as directly as possible."""

    strategy: Strategy
    intensity: int
    period: float
    auto_shutdown: AutoShutdown
    children: list[ReferenceChild] = field(default_factory=list[ReferenceChild])
    restarts: list[float] = field(default_factory=list[float])
    over: bool = False
    failing_starts: dict[str, int] = field(default_factory=dict[str, int])
    """Number of a child's next starts that fail."""

    def find(self, id: str) -> ReferenceChild | None:
        """Return the child of that name."""
        return next((child for child in self.children if child.spec.id == id), None)

    def start_child(self, spec: ChildSpec) -> str:
        """Add and start a child."""
        if self.find(spec.id) is not None:
            return "exists"
        if self._fails(spec.id):
            return "failed"
        self.children.append(ReferenceChild(spec))
        return "ok"

    def terminate_child(self, id: str) -> str:
        """Stop a child."""
        child = self.find(id)
        if child is None:
            return "unknown"
        child.running = False
        self._forget_temporary([child])
        return "ok"

    def restart_child(self, id: str) -> str:
        """Start a stopped child."""
        child = self.find(id)
        if child is None:
            return "unknown"
        if child.running:
            return "active"
        return "ok" if self._start(child) else "failed"

    def delete_child(self, id: str) -> str:
        """Forget a stopped child."""
        child = self.find(id)
        if child is None:
            return "unknown"
        if child.running:
            return "active"
        self.children.remove(child)
        return "ok"

    def ends(self, id: str, *, abnormal: bool, now: float) -> None:
        """Record that a running child ended by itself."""
        child = self.find(id)
        assert child is not None
        assert child.running
        child.running = False
        restart = child.spec.restart
        if restart is Restart.PERMANENT or (restart is Restart.TRANSIENT and abnormal):
            self._restart(child, now)
            return
        self._forget_temporary([child])
        others = any(other.spec.significant and other.running for other in self.children)
        if child.spec.significant:
            self.over |= self.auto_shutdown is AutoShutdown.ANY_SIGNIFICANT
            self.over |= self.auto_shutdown is AutoShutdown.ALL_SIGNIFICANT and not others

    def _restart(self, child: ReferenceChild, now: float) -> None:
        self.restarts = [then for then in self.restarts if then >= now - self.period] + [now]
        if len(self.restarts) > self.intensity:
            self.over = True
            return
        together = {
            Strategy.ONE_FOR_ONE: [child],
            Strategy.ONE_FOR_ALL: list(self.children),
            Strategy.REST_FOR_ONE: self.children[self.children.index(child) :],
        }[self.strategy]
        for each in together:
            each.running = False
        self._forget_temporary(together)
        for each in together:
            if each in self.children and not self._start(each):
                self._restart(each, now)
                return

    def _start(self, child: ReferenceChild) -> bool:
        if self._fails(child.spec.id):
            return False
        child.running = True
        child.starts += 1
        return True

    def _fails(self, id: str) -> bool:
        left = self.failing_starts.get(id, 0)
        self.failing_starts[id] = max(0, left - 1)
        return left > 0

    def _forget_temporary(self, ended: list[ReferenceChild]) -> None:
        for child in ended:
            if child.spec.restart is Restart.TEMPORARY:
                self.children.remove(child)
