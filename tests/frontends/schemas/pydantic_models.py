"""Schemas that pydantic emits for fields and models, as inputs and as outputs."""

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import typing
import uuid
from collections import deque

import annotated_types
import pydantic
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    zip: str = Field(pattern=r"^\d{5}$")


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=40, examples=["Ann"])
    age: int = Field(ge=0, le=150, description="In years")
    email: str | None = None
    home: Address
    work: Address | None = None
    tags: list[str] = []


class Cat(BaseModel):
    kind: typing.Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: typing.Literal["dog"]
    name: str


class Pet(BaseModel):
    pet: typing.Annotated[Cat | Dog, Field(discriminator="kind")]


class Node(BaseModel):
    value: int
    children: list["Node"] = []
    next: typing.Optional["Node"] = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Aliased(BaseModel):
    from_: str = Field(alias="from")
    count: int = Field(default=1, alias="Count", deprecated=True)


class Computed(BaseModel):
    width: float

    @pydantic.computed_field
    @property
    def area(self) -> float:
        return self.width**2


class Root(pydantic.RootModel[dict[str, list[int]]]):
    pass


class Movie(typing_extensions.TypedDict, total=False):
    title: typing_extensions.Required[str]
    year: int


class Point(typing.NamedTuple):
    x: float
    y: float


class Everything(BaseModel):
    id: uuid.UUID
    at: datetime.datetime
    price: decimal.Decimal = Field(max_digits=6, decimal_places=2)
    color: Color
    level: Level = Level.LOW
    where: pydantic.AnyUrl | None = None
    pair: tuple[int, str]
    scores: dict[str, float] = Field(min_length=1)
    unique: set[int]
    extra: dict[str, typing.Any] = {}


TYPES = {
    "str": str,
    "constrained str": typing.Annotated[str, Field(min_length=2, max_length=5)],
    "pattern": typing.Annotated[str, Field(pattern=r"^[A-Z]{3}-\d+$")],
    "pattern and length": typing.Annotated[str, Field(pattern=r"^[a-z]+$", max_length=5)],
    "int": int,
    "positive int": pydantic.PositiveInt,
    "negative int": pydantic.NegativeInt,
    "non-negative float": pydantic.NonNegativeFloat,
    "float": float,
    "finite float": pydantic.FiniteFloat,
    "bounded float": typing.Annotated[float, Field(gt=0, lt=1)],
    "multiple": typing.Annotated[int, Field(multiple_of=3)],
    "multiple and bounds": typing.Annotated[float, Field(multiple_of=0.5, ge=0, le=10)],
    "int64": typing.Annotated[int, Field(ge=-(2**63), le=2**63 - 1)],
    "uint64": typing.Annotated[int, Field(ge=0, le=2**64 - 1)],
    "bool": bool,
    "none": None,
    "any": typing.Any,
    "bytes": bytes,
    "decimal": decimal.Decimal,
    "bounded decimal": typing.Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)],
    "date": datetime.date,
    "datetime": datetime.datetime,
    "aware datetime": pydantic.AwareDatetime,
    "past date": pydantic.PastDate,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "uuid": uuid.UUID,
    "uuid1": pydantic.UUID1,
    "uuid4": pydantic.UUID4,
    "url": pydantic.AnyUrl,
    "http url": pydantic.HttpUrl,
    "dsn": pydantic.PostgresDsn,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipv4 network": ipaddress.IPv4Network,
    "ipv6 interface": ipaddress.IPv6Interface,
    "ip": pydantic.IPvAnyAddress,
    "path": pathlib.Path,
    "file path": pydantic.FilePath,
    "secret": pydantic.SecretStr,
    "json": pydantic.Json[list[int]],
    "base64": pydantic.Base64Str,
    "base64 bytes": pydantic.Base64Bytes,
    "literal": typing.Literal["a", "b"],
    "literals": typing.Literal["a", 1, True, None],
    "enum": Color,
    "int enum": Level,
    "optional": typing.Optional[int],
    "union": int | str | None,
    "union of models": Cat | Dog,
    "list": list[int],
    "bounded list": typing.Annotated[list[str], Field(min_length=1, max_length=3)],
    "list of models": list[Address],
    "set": set[str],
    "frozenset": frozenset[int],
    "bounded set": typing.Annotated[set[int], Field(min_length=2, max_length=4)],
    "deque": deque[int],
    "tuple": tuple[int, str, bool],
    "tuple of any length": tuple[int, ...],
    "empty tuple": tuple[()],
    "dict": dict[str, int],
    "dict of literals": dict[typing.Literal["a", "b"], int],
    "dict of enum": dict[Color, int],
    "dict of ints": dict[int, str],
    "dict of patterns": dict[typing.Annotated[str, Field(pattern="^x-")], int],
    "dict of long keys": dict[typing.Annotated[str, Field(min_length=3, max_length=6)], int],
    "bounded dict": typing.Annotated[dict[str, int], Field(min_length=1, max_length=3)],
    "nested dict": dict[str, dict[str, list[float | None]]],
    "typed dict": Movie,
    "named tuple": Point,
    "not in": typing.Annotated[int, annotated_types.Ge(3), annotated_types.Lt(10)],
    "address": Address,
    "person": Person,
    "pet": Pet,
    "node": Node,
    "open": Open,
    "aliased": Aliased,
    "computed": Computed,
    "root": Root,
    "everything": Everything,
    "json value": pydantic.JsonValue,
}


def main() -> None:
    for mode in ("validation", "serialization"):
        for name, one in TYPES.items():
            try:
                schema = TypeAdapter(one).json_schema(mode=mode)
            except pydantic.errors.PydanticInvalidForJsonSchema:
                continue
            print(json.dumps({"name": f"pydantic {mode}: {name}", "schema": schema}))


main()
