"""Fast replacements of `typing.NamedTuple`, `Protocol`, `Generic` and `TypeVar`. Type checkers see the standard ones.

Importing `typing` or `dataclasses` and making a dozen classes takes longer than a resolve over a few documents.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Generic, Protocol, TypeVar
    from typing import NamedTuple as Record
else:
    # Importing `operator` itself would take longer.
    from _operator import itemgetter

    class Record(tuple):
        __slots__ = ()
        _fields = ()
        # The defaults of the last fields; each class has its own.
        _defaults = {}  # noqa: RUF012

        def __init_subclass__(cls):
            cls._fields = tuple(cls.__annotations__)
            cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}
            for position, name in enumerate(cls._fields):
                setattr(cls, name, property(itemgetter(position)))

        def __new__(cls, *values, **named):
            fields = cls._fields
            if named or len(values) != len(fields):
                defaults = cls._defaults
                try:
                    rest = [named.pop(name) if name in named else defaults[name] for name in fields[len(values) :]]
                except KeyError:
                    raise cls._refusal() from None
                if named or len(values) > len(fields):
                    raise cls._refusal()
                values = (*values, *rest)
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values):
            """A value of all fields at once; nothing is checked."""
            return tuple.__new__(cls, values)

        @classmethod
        def _refusal(cls):
            return TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}")

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            members = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({members})"

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **named):
            return type(self)(**(self._asdict() | named))

    class Protocol:
        __slots__ = ()

    class Generic:
        __slots__ = ()

        def __class_getitem__(cls, _types):
            return cls

    def TypeVar(name, **_):  # noqa: N802 - the standard name
        return name


__all__ = ["Generic", "Protocol", "Record", "TypeVar"]
