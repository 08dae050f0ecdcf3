"""Asking: from a client's body to the requests that a target is asked."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from stress.endpoint.bodies import Body, ChatBody, ChatMessage, CompletionBody
from stress.endpoint.errors import ApiError
from stress.endpoint.tokens import Message, Tokenizer
from targets.protocol import GREEDY, BadInput, Factory, Request, Sampling, Setting

MAX_TOKENS = 16
"""As many new tokens a completion has where it does not say; a chat answer has as many as there is room for."""
CHOICES_MAX = 64
"""As many requests one body may come to: prompts times answers to each."""
SEEDS = 1_000_000

AnyBody = TypeVar("AnyBody", CompletionBody, ChatBody)
_COMPLETIONS = msgspec.json.Decoder(CompletionBody)
_CHATS = msgspec.json.Decoder(ChatBody)


class Asked(msgspec.Struct, frozen=True):
    """What a body comes to.

    Attributes:
        requests: For `Driver.submit`, in the order of the choices.
        prompt_tokens: Of each prompt once.
        stops: Stop strings.
        shown: As many of the likeliest tokens are told beside each; None where no log-probabilities are.
        ids: Whether token ids are told.
        stream: Whether it is streamed.
        usage: Whether the stream ends with the number of tokens.
        deadline_s: The client's own; None for none.
    """

    requests: tuple[Request, ...]
    prompt_tokens: int
    stops: tuple[str, ...]
    shown: int | None
    ids: bool
    stream: bool
    usage: bool
    deadline_s: float | None


class Asker:
    """Reads bodies for one served model."""

    def __init__(self, factory: Factory, settings: Mapping[str, Setting], tokenizer: Tokenizer, model: str) -> None:
        self.control = factory.control
        self.vocabulary = factory.vocabulary
        self.context_tokens_max = factory.context_tokens_max(settings)
        self.tokenizer = tokenizer
        self.model = model

    def completion(self, data: bytes) -> Asked:
        """The body of a completion.

        Raises:
            ApiError: with what is wrong with it.
        """
        body = _decoded(_COMPLETIONS, data)
        _only(body.echo in (None, False), "echo", "false: the prompt is not told again", body.echo)
        _only(body.best_of in (None, body.n or 1), "best_of", "as large as n: none is thrown away", body.best_of)
        prompts = [self.ids(prompt) for prompt in _prompts(body.prompt)]
        return self.asked(body, prompts, MAX_TOKENS if body.max_tokens is None else body.max_tokens, body.logprobs)

    def chat(self, data: bytes) -> Asked:
        """The body of a chat; raises ApiError as `completion` does."""
        body = _decoded(_CHATS, data)
        top = body.top_logprobs
        _only(top is None or bool(body.logprobs), "top_logprobs", "left out where logprobs is not true", top)
        try:
            prompt = self.tokenizer.read_chat([Message(each.role, _content(each)) for each in body.messages])
        except BadInput as error:
            raise ApiError(400, str(error), param=error.name) from error
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        room = max(self.context_tokens_max - len(prompt), 0)
        return self.asked(body, [prompt], room if most is None else most, (top or 0) if body.logprobs else None)

    def ids(self, prompt: str | list[int]) -> list[int]:
        """A prompt as token ids."""
        try:
            return self.tokenizer.read(prompt) if isinstance(prompt, str) else prompt
        except BadInput as error:
            raise ApiError(400, str(error), param=error.name) from error

    def asked(self, body: Body, prompts: list[list[int]], max_tokens: int, shown: int | None) -> Asked:
        """The requests of a body, `n` to each prompt."""
        if body.model not in (None, self.model):
            raise ApiError(404, f"model must be {self.model}, got {body.model}", param="model", code="model_not_found")
        count = body.n or 1
        if len(prompts) * count > CHOICES_MAX:
            raise ApiError(400, f"prompts times n must be at most {CHOICES_MAX}, got {len(prompts) * count}", param="n")
        for prompt in prompts:
            self.check(prompt)
        sampling = self.sampling(body, shown)
        ends = () if body.ignore_eos else self.tokenizer.ends
        first = Request(
            prompt=(),
            max_new_tokens=max_tokens,
            stop=tuple(dict.fromkeys((*ends, *body.stop_token_ids))),
            salt=body.salt,
        )
        requests = [
            msgspec.structs.replace(
                first,
                prompt=tuple(prompt),
                sampling=msgspec.structs.replace(sampling, seed=(sampling.seed + answer) % SEEDS),
                sample_of=number * count if answer else None,
            )
            for number, prompt in enumerate(prompts)
            for answer in range(count)
        ]
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        return Asked(
            requests=tuple(requests),
            prompt_tokens=sum(map(len, prompts)),
            stops=tuple(stops),
            shown=shown,
            ids=body.return_token_ids,
            stream=bool(body.stream),
            usage=body.stream_options is not None and body.stream_options.include_usage,
            deadline_s=body.deadline_s,
        )

    def check(self, prompt: list[int]) -> None:
        """Refuses a prompt that leaves no room for an answer, or has ids that the model does not know."""
        if len(prompt) >= self.context_tokens_max:
            message = f"prompt must have fewer than {self.context_tokens_max} tokens, got {len(prompt)}"
            raise ApiError(400, message, param="prompt", code="context_length_exceeded")
        if max(prompt, default=0) >= self.vocabulary:
            message = f"prompt must have token ids below {self.vocabulary}, got {max(prompt)}"
            raise ApiError(400, message, param="prompt")

    def sampling(self, body: Body, shown: int | None) -> Sampling:
        """How tokens are chosen, and what is told of the choice."""
        temperature = body.temperature or 0.0
        drawn = secrets.randbelow(SEEDS) if body.seed is None and temperature else body.seed or 0
        sampling = Sampling(
            temperature=temperature,
            seed=drawn % SEEDS,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            bias=tuple((body.logit_bias or {}).items()),
            allowed=tuple(dict.fromkeys(body.allowed_token_ids)),
            min_new_tokens=body.min_tokens,
            logprobs=0 if shown is None else max(shown, 1),
        )
        if not self.control.sampling and sampling != msgspec.structs.replace(GREEDY, seed=sampling.seed):
            raise ApiError(400, "sampling parameters must be left out: this target takes none", param="temperature")
        return sampling


def _decoded(decoder: msgspec.json.Decoder[AnyBody], data: bytes) -> AnyBody:
    """A body, or what is wrong with it."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        named = re.search(r"at `(?:key` in `)?\$\.?(\w*)|field `(\w+)`", str(error))
        param = next(filter(None, named.groups()), None) if named else None
        raise ApiError(400, f"the body must be as documented: {error}", param=param) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"the body must be JSON: {error}", code="invalid_json") from error


def _only(right: bool, name: str, rule: str, got: object) -> None:
    """Refuses a value that would ask for what there is not."""
    if not right:
        raise ApiError(400, f"{name} must be {rule}, got {msgspec.json.encode(got).decode()}", param=name)


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """One prompt or several; each is a text or a list of ids."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(each) for each in prompt}
    if len(kinds) > 1:
        raise ApiError(400, "prompt must be a text, token ids, or a list of one of these, got a mixture", param="prompt")
    return [prompt] if kinds == {int} else list(prompt)


def _content(message: ChatMessage) -> str:
    """The text of a message."""
    content = message.content
    return content if isinstance(content, str) else "".join(part.text for part in content)
