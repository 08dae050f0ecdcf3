"""Models: what an endpoint serves."""

from __future__ import annotations

import msgspec

from stress.load.client import Client
from targets.protocol.errors import BadInput


class Served(msgspec.Struct, frozen=True):
    """A model that is listed."""

    id: str


class Listed(msgspec.Struct, frozen=True):
    """What `/v1/models` says."""

    data: list[Served]


def find_model(client: Client) -> str:
    """The first model that an endpoint lists.

    Raises:
        BadInput: where it lists none.
    """
    try:
        listed = msgspec.json.decode(client.get("/v1/models"), type=Listed)
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput("--host", "an endpoint that lists its models, or --model given", str(error)) from error
    if not listed.data:
        raise BadInput("--model", "given where the endpoint lists none", "nothing")
    return listed.data[0].id
