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
            if named or len(values) != len(cls._fields):
                values = cls._complete(values, named)
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values):
            """A value of all fields at once; nothing is checked."""
            return tuple.__new__(cls, values)

        @classmethod
        def _complete(cls, values, named):
            absent = cls._fields[len(values) :]
            known = cls._defaults | named
            if not (named.keys() <= set(absent) <= known.keys()) or len(values) > len(cls._fields):
                raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}")
            return values + tuple([known[name] for name in absent])

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
