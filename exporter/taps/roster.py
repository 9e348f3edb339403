"""Which models are counted: the server says, not the client.

A model's name is what a client wrote, and anybody can write anything.  What is counted of a name is
told only after the server has shown that it knows it; until then few such names are kept, and the
oldest goes when there are more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from exporter.taps.model import Model

MAX_MODELS = 256
"""Models that are told of, versions counted; those that are expected may be more."""
MAX_UNPROVEN = 64


class Roster:
    """The models that requests are for; names that are ``expected`` need no proof."""

    def __init__(self, new: Callable[[str, str], Model], expected: Collection[str] = ()) -> None:
        self._new = new
        self._expected = frozenset(expected)
        self._models: dict[tuple[str, str], Model] = {}
        self._served: dict[str, str] = {}
        for name in expected:
            self.asked(name, "")

    def asked(self, name: str, version: str) -> Model | None:
        """Return the model that a request is for; None if there are too many.

        Without a version it is the one that such a request was last answered by.
        """
        usual = self._served.get(name, "")
        key = name, version or usual
        model = self._models.get(key)
        expected = name in self._expected and key[1] == usual
        if model is None and (expected or self._has_room()):
            model = self._models[key] = self._new(*key)
            model.proven = expected
        return model

    def answered(self, asked: Model, name: str, version: str) -> Model:
        """Return the model that an answer is from, which proves it.

        ``asked`` is what the request was for.  If only the answer says which version that is, it
        takes along what was counted before.
        """
        model = asked
        if version and (name, version) != (asked.name, asked.version):
            self._served[name] = version
            settled = asked.proven and asked.version
            if name == asked.name and not settled and (name, version) not in self._models:
                del self._models[name, asked.version]
                asked.version = version
                self._models[name, version] = asked
        if (name, version or model.version) != (model.name, model.version):
            model = self.asked(name, version) or asked
        model.proven = True
        return model

    def told(self) -> Iterator[Model]:
        """Yield the models that the server knows; meanwhile there may come more."""
        return (model for model in tuple(self._models.values()) if model.proven)

    def _has_room(self) -> bool:
        """Tell whether another model may be counted; make room among those without proof."""
        unproven = [model for model in self._models.values() if not model.proven]
        chosen = sum(model.name in self._expected for model in self._models.values())
        if len(self._models) - len(unproven) - chosen >= MAX_MODELS:
            return False
        if len(unproven) < MAX_UNPROVEN:
            return True
        idle = next((model for model in unproven if not model.live), None)
        if idle:
            del self._models[idle.name, idle.version]
        return idle is not None
