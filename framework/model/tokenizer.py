"""Tokenizers: text and conversations to token ids, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from framework.errors import InvalidArgument, ModelError
from framework.files.jsonl import json_text, read_object
from framework.model.config import ModelConfig
from framework.types import TokenArray, as_tokens

BOS, EOS, END_OF_TURN = 256, 257, 258
ROLES = {"system": 259, "user": 260, "assistant": 261, "tool": 262}
BYTE_VOCABULARY = 263
"""Token ids of a ByteTokenizer."""


class Tokenizer(Protocol):
    """What the engine and the workloads need of a tokenizer."""

    @property
    def has_text(self) -> bool:
        """Whether it knows text at all; without, only token ids go in and come out."""

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to one below it."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a generation; may be empty."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens (bos) that the checkpoint adds to a plain prompt."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out. Bytes that are no UTF-8 become U+FFFD."""

    def apply_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation ({"role", "content"} each), ending where the assistant is to speak.

        Raises:
            ModelError: no chat template, or one that refuses these messages.
        """


def encode(tokenizer: Tokenizer, prompt: Any) -> TokenArray:
    """Token ids (n,) int32 of a text, of chat messages ({"role", "content"} mappings), or of ids already.

    Raises:
        InvalidArgument: text that is no Unicode (a lone surrogate), or messages without role and content.
        InvalidTokens: ids that are none.
        ModelError: a text for a model without a tokenizer, or messages that its chat template refuses.
    """
    if isinstance(prompt, str):
        _require_unicode("the prompt", prompt)
        return as_tokens(tokenizer.encode(prompt))
    if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], Mapping):
        return as_tokens(tokenizer.apply_chat([_message(number, message) for number, message in enumerate(prompt)]))
    return as_tokens(prompt)


def _message(number: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidArgument(f"message {number} must be a mapping with role and content, found {message!r:.60}")
    if message.get("tool_calls") and message.get("content") is None:
        message = {**message, "content": ""}
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise InvalidArgument(f"message {number}: {key} must be text, found {message.get(key)!r:.60}")
        _require_unicode(f"message {number}: {key}", message[key])
    return dict(message)


def _require_unicode(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what} holds a lone surrogate, U+{ord(text[error.start]):04X} at character {error.start}: no Unicode text"
        ) from error


class ByteTokenizer:
    """UTF-8 bytes are tokens 0 to 255; bos, eos, end of turn and one marker a role follow.

    Args:
        vocab_size: of the model, when it is larger than what the tokenizer itself uses (263).
        eos_token_ids: give none for random weights that are to generate to the requested length.
    """

    has_text = True

    def __init__(self, vocab_size: int = BYTE_VOCABULARY, eos_token_ids: tuple[int, ...] = (EOS,)):
        if vocab_size < BYTE_VOCABULARY:
            raise ModelError(f"a byte tokenizer needs {BYTE_VOCABULARY} token ids, the model has {vocab_size}")
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids

    def encode(self, text: str) -> list[int]:
        """bos, then the bytes of `text`."""
        return [BOS, *text.encode("utf-8", errors="surrogatepass")]

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes among `ids`; those that are no UTF-8 become U+FFFD."""
        return bytes(token for token in ids if 0 <= token < 256).decode("utf-8", errors="replace")

    def apply_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """bos, then per message its role's marker, its bytes, its tool calls as JSON and an end of turn; last the
        assistant's marker.

        Raises:
            ModelError: a role without a marker.
        """
        ids = [BOS]
        for message in messages:
            role = message.get("role", "")
            if role not in ROLES:
                raise ModelError(f"the tiny model knows no role '{role}'; known: {', '.join(ROLES)}")
            calls = json_text(message["tool_calls"]) if message.get("tool_calls") else ""
            ids += [ROLES[role], *f"{message.get('content', '')}{calls}".encode(), END_OF_TURN]
        return [*ids, ROLES["assistant"]]


def load_tokenizer(folder: Path, config: ModelConfig) -> CheckpointTokenizer | NoTokenizer:
    """The tokenizer of a checkpoint's folder: tokenizer.json, tokenizer_config.json, chat_template.jinja.

    A checkpoint without tokenizer.json takes prompts of token ids and answers with ids.

    Raises:
        ModelError: one that cannot be read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return NoTokenizer(config.vocab_size, config.eos_token_ids, str(folder))
    settings = (
        read_object(folder / "tokenizer_config.json", ModelError)
        if (folder / "tokenizer_config.json").is_file()
        else {}
    )
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        try:
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"'{folder / 'chat_template.jinja'}' cannot be read: {error}") from error
    if isinstance(template, list) and all(isinstance(entry, Mapping) for entry in template):
        template = {str(entry.get("name")): entry.get("template") for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(
            f"'{folder / 'tokenizer_config.json'}': chat_template must be text, or a list of objects of name and "
            f"template, found {template!r:.60}"
        )
    return CheckpointTokenizer(path, config.eos_token_ids, template=template, special=_special_tokens(settings))


class NoTokenizer:
    """In place of the tokenizer of a checkpoint that has none: token ids go in and come out.

    Args:
        where: the checkpoint, for messages.
    """

    has_text = False

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int] = (), where: str = "this model") -> None:
        self.vocab_size, self.eos_token_ids, self._where = vocab_size, tuple(eos_token_ids), where

    def _refuse(self, *_: object) -> NoReturn:
        """Raise ModelError: there is no text."""
        raise ModelError(
            f"'{self._where}' has no tokenizer.json: give prompts as token ids, or save the tokenizer with "
            "transformers' save_pretrained"
        )

    encode = decode = apply_chat = _refuse


class CheckpointTokenizer:
    """A Hugging Face tokenizer.json through the `tokenizers` library, and its chat template through Jinja's sandbox.

    Args:
        path: tokenizer.json.
        eos_token_ids: ids that end a generation, as the model's config has them; if none, the tokenizer's own.
        template: Jinja source of the chat template; None when the checkpoint has none.
        special: special tokens by role ("bos_token": "<s>"), as the template may name them.
    """

    has_text = True

    def __init__(
        self,
        path: Path,
        eos_token_ids: Sequence[int] = (),
        *,
        template: str | None = None,
        special: Mapping[str, str] | None = None,
    ):
        from tokenizers import Tokenizer as Rust

        try:
            self._rust = Rust.from_file(str(path))
        except Exception as error:  # the binding raises plain Exception
            raise ModelError(f"'{path}' cannot be read as a tokenizer: {error}") from error
        self._rust.no_padding()
        self._rust.no_truncation()
        self._template, self._special = template, dict(special or {})
        eos_token_id = self._rust.token_to_id(self._special.get("eos_token", ""))
        ends = eos_token_ids if eos_token_ids or eos_token_id is None else (eos_token_id,)
        self.eos_token_ids = tuple(ends)
        self.vocab_size = max(self._rust.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` with the special tokens of the checkpoint's post-processor."""
        return list(self._rust.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return str(self._rust.decode(list(ids), skip_special_tokens=True))

    def apply_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of the rendered template; the template, not the post-processor, adds special tokens.

        Raises:
            ModelError: no template, or one that refuses these messages.
        """
        return list(self._rust.encode(self.render_chat(messages), add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as text, ending where the assistant is to speak. Raises ModelError as `apply_chat`."""
        if self._template is None:
            raise ModelError("this checkpoint has no chat template; give plain text prompts")
        try:
            template = _chat_environment().from_string(self._template)
            return str(template.render(messages=list(messages), add_generation_prompt=True, **self._special))
        except Exception as error:  # a template is a program from elsewhere, and raises what it likes
            raise ModelError(f"the chat template refuses these messages: {type(error).__name__}: {error}") from error


def _chat_environment() -> Any:
    """Jinja as transformers sets it up (`chat_template_utils`), sandboxed: a template is a program from elsewhere."""
    import json
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    tokens = {role: settings.get(role) for role in ("bos_token", "eos_token", "unk_token", "pad_token")}
    texts = {role: one.get("content") if isinstance(one, Mapping) else one for role, one in tokens.items()}
    return {role: text for role, text in texts.items() if isinstance(text, str)}
