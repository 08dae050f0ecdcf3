"""Models: what an endpoint serves."""

from __future__ import annotations

import msgspec

from stress.load.client import Client
from stress.offer import Offer
from targets.protocol.errors import BadInput


class Served(msgspec.Struct, frozen=True):
    """A model that is listed; `slotfuzz` is what an endpoint of ours says of its target."""

    id: str
    slotfuzz: Offer | None = None


class Listed(msgspec.Struct, frozen=True):
    """What `/v1/models` says."""

    data: list[Served]


def find_served(client: Client, name: str | None) -> Served:
    """The model of that name, of which nothing need be known; without a name the first one that an endpoint lists.

    Raises:
        BadInput: where there is no name, and it lists none.
    """
    try:
        listed = msgspec.json.decode(client.get("/v1/models"), type=Listed).data
    except (OSError, msgspec.DecodeError) as error:
        if name is None:
            raise BadInput("--host", "an endpoint that lists its models, or --model given", str(error)) from error
        listed = []
    if name is not None:
        return next((served for served in listed if served.id == name), Served(name))
    if not listed:
        raise BadInput("--model", "given where the endpoint lists none", "nothing")
    return listed[0]
