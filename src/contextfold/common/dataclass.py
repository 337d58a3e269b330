"""A fast replacement of `dataclasses`: it compiles methods on first use. Type checkers see the standard module.

The standard module imports `inspect` and compiles six methods for each class at import time. For the hundred classes of
folding that takes longer than everything else a command does. Here only `__init__` is compiled, when a class has some
instances already; all other methods are shared. It supports the options that the project uses: `frozen`, `slots` and
`eq`, defaults, factories, and `repr` and `compare` of a field. The functions of `dataclasses` accept these classes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import MISSING, dataclass, field, fields, replace
else:
    # Importing `operator` itself would take longer.
    from _operator import attrgetter

    MISSING = object()
    # Compiling takes as long as making this many instances without it.
    _UNCOMPILED = 100
    _set = object.__setattr__

    class _Field:
        __slots__ = ("compare", "default", "default_factory", "name", "repr")

        def __init__(self, name, default, default_factory, repr, compare):
            self.name = name
            self.default = default
            self.default_factory = default_factory
            self.repr = repr
            self.compare = compare

    def field(*, default=MISSING, default_factory=MISSING, repr=True, compare=True):
        return _Field("", default, default_factory, repr, compare)

    # The fields of each class, made when they are first needed.
    _fields = {}

    def fields(value):
        cls = value if isinstance(value, type) else type(value)
        if cls not in _fields:
            given = cls._given_of_dataclass
            _fields[cls] = tuple([_field_of(name, given.get(name, MISSING)) for name in cls.__match_args__])
        return _fields[cls]

    def replace(value, /, **changes):
        cls = type(value)
        values = dict(zip(cls.__match_args__, cls._values_of_dataclass(value), strict=True)) | changes
        # A name that is no field is refused as by the class.
        return cls(*values.values()) if len(values) == len(cls.__match_args__) else cls(**values)

    def dataclass(*, frozen=False, slots=False, eq=True):
        if not slots:
            raise TypeError("give slots=True: every dataclass of the project has slots")
        return lambda cls: _make_dataclass(cls, frozen, eq)

    def _make_dataclass(cls, frozen, eq):
        body = dict(cls.__dict__)
        names = tuple([name for name, written in body["__annotations__"].items() if not written.startswith("ClassVar")])
        given = {name: body.pop(name) for name in names if name in body}
        values_of = _reading(names)
        owner = []
        body.pop("__dict__", None)
        body.pop("__weakref__", None)
        body["__slots__"] = body["__match_args__"] = names
        body["_given_of_dataclass"] = given
        body["_values_of_dataclass"] = values_of
        body["__dataclass_fields__"] = _standard_fields
        body["__init__"] = _first_init(owner, names, given, frozen)
        body["__repr__"] = _repr
        if frozen:
            body |= _FROZEN
        if eq:
            uncompared = [name for name, value in given.items() if type(value) is _Field and not value.compare]
            compared = tuple(name for name in names if name not in uncompared)
            body["__eq__"], body["__hash__"] = _comparing(_reading(compared) if uncompared else values_of, frozen)
        # The class is made again, because slots cannot be added to one.
        owner.append(type(cls)(cls.__name__, cls.__bases__, body))
        return owner[0]

    def _field_of(name, default):
        if isinstance(default, _Field):
            default.name = name
            return default
        return _Field(name, default, MISSING, True, True)

    def _first_init(owner, names, given, frozen):
        """The `__init__` of a class until enough instances were made to compile one for it."""
        uncompiled = _UNCOMPILED
        setters, has_post_init = (), False

        def __init__(self, *values, **named):
            nonlocal uncompiled, setters, has_post_init
            cls = owner[0]
            uncompiled -= 1
            every = values if len(values) == len(names) and not named else _completed(names, given, values, named)
            if uncompiled < 0 or every is None:
                # If the arguments do not fit, the compiled one says so.
                cls.__init__ = _compiled_init(cls, frozen)
                cls.__init__(self, *values, **named)
                return
            if not setters:
                setters = [cls.__dict__[name].__set__ for name in names]
                has_post_init = hasattr(cls, "__post_init__")
            for set_value, value in zip(setters, every, strict=True):
                set_value(self, value)
            if has_post_init:
                self.__post_init__()

        return __init__

    def _completed(names, given, values, named):
        """The values of all fields; None if the arguments do not fit."""
        every = list(values)
        unread = len(named)
        for name in names[len(values) :]:
            if name in named:
                value = named[name]
                unread -= 1
            else:
                value = given.get(name, MISSING)
                if type(value) is _Field:
                    value = value.default if value.default_factory is MISSING else value.default_factory()
                if value is MISSING:
                    return None
            every.append(value)
        return None if unread or len(every) > len(names) else every

    def _compiled_init(cls, frozen):
        known = {"_missing": MISSING}
        parameters, lines = [], []
        for at, each in enumerate(fields(cls)):
            name, value = each.name, each.name
            if each.default_factory is not MISSING:
                known[f"_make_{at}"] = each.default_factory
                parameters.append(f"{name}=_missing")
                value = f"_make_{at}() if {name} is _missing else {name}"
            elif each.default is not MISSING:
                known[f"_default_{at}"] = each.default
                parameters.append(f"{name}=_default_{at}")
            else:
                parameters.append(name)
            if frozen:
                known[f"_set_{at}"] = cls.__dict__[name].__set__
                lines.append(f" _set_{at}(self, {value})")
            else:
                lines.append(f" self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append(" self.__post_init__()")
        exec(f"def __init__({', '.join(['self', *parameters])}):\n" + ("\n".join(lines) or " pass"), known)  # noqa: S102
        init = known["__init__"]
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        return init

    def _repr(self):
        shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _reading(names):
        """A function of an instance that returns the values of some fields."""
        if len(names) > 1:
            return attrgetter(*names)
        return staticmethod(lambda value: tuple(getattr(value, name) for name in names))

    def _comparing(key, frozen):
        def __eq__(self, other):
            return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

        def __hash__(self):
            return hash(key(self))

        return __eq__, __hash__ if frozen else None

    def _refuse(self, name, value=None):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot change field {name!r}")

    def _state(self):
        return [getattr(self, name) for name in self.__match_args__]

    def _restore(self, state):
        for name, value in zip(self.__match_args__, state, strict=True):
            _set(self, name, value)

    _FROZEN = {"__setattr__": _refuse, "__delattr__": _refuse, "__getstate__": _state, "__setstate__": _restore}

    class _StandardFields:
        """Creates `__dataclass_fields__` when a function of `dataclasses` first reads it."""

        def __get__(self, instance, cls):
            import dataclasses

            # The class itself, or the one whose fields it inherits.
            owner = next(each for each in cls.__mro__ if "_given_of_dataclass" in each.__dict__)
            made = [(name, object, dataclasses.field(kw_only=True)) for name in owner.__match_args__]
            owner.__dataclass_fields__ = dataclasses.make_dataclass(owner.__name__, made).__dataclass_fields__
            return owner.__dataclass_fields__

    _standard_fields = _StandardFields()


__all__ = ["MISSING", "dataclass", "field", "fields", "replace"]
