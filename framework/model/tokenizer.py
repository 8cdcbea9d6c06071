"""Tokenizers: text and conversations to token ids, and back."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from framework.errors import InvalidArgument, ModelError
from framework.model.config import ModelConfig
from framework.types import TokenArray, as_tokens

_MOST_CHARACTERS = 2**26  # of a rendered conversation: above what any context holds


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

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
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


def _message(number: int, message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InvalidArgument(f"message {number} must be a mapping with role and content, found {message!r:.60}")
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


def load_tokenizer(folder: Path, config: ModelConfig) -> CheckpointTokenizer | NoTokenizer:
    """The tokenizer of a checkpoint's folder: tokenizer.json, tokenizer_config.json, chat_template.jinja.

    A checkpoint without tokenizer.json takes prompts of token ids and answers with ids.

    Raises:
        ModelError: one that cannot be read.
    """
    from framework.model.checkpoint import read_json

    path = folder / "tokenizer.json"
    if not path.is_file():
        return NoTokenizer(config.vocab_size, config.eos_token_ids, str(folder))
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
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

    def encode(self, text: str) -> list[int]:
        """There is none.

        Raises:
            ModelError: always.
        """
        raise self._missing()

    def decode(self, ids: Sequence[int]) -> str:
        """There is none. Raises ModelError, always."""
        raise self._missing()

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """There is none. Raises ModelError, always."""
        raise self._missing()

    def _missing(self) -> ModelError:
        return ModelError(
            f"'{self._where}' has no tokenizer.json: give prompts as token ids, or save the tokenizer with "
            "transformers' save_pretrained"
        )


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
        own = self._rust.token_to_id(self._special.get("eos_token", ""))
        ends = eos_token_ids if eos_token_ids or own is None else (own,)
        self.eos_token_ids = tuple(ends)
        self.vocab_size = max(self._rust.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` with the special tokens of the checkpoint's post-processor."""
        return list(self._rust.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return str(self._rust.decode(list(ids), skip_special_tokens=True))

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of the rendered template; the template, not the post-processor, adds special tokens.

        Raises:
            ModelError: no template, or one that refuses these messages.
        """
        return list(self._rust.encode(self.render_chat(messages), add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation as text, ending where the assistant is to speak. Raises ModelError as `apply_chat`."""
        if self._template is None:
            raise ModelError("this checkpoint has no chat template; give plain text prompts")
        try:
            template = _chat_environment().from_string(self._template)
            return _joined(template.generate(messages=list(messages), add_generation_prompt=True, **self._special))
        except Exception as error:  # a template is a program from elsewhere, and raises what it likes
            raise ModelError(f"the chat template refuses these messages: {type(error).__name__}: {error}") from error


def _joined(pieces: Iterable[Any]) -> str:
    text = ""
    for piece in pieces:
        text += str(piece)
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"its text has more than {_MOST_CHARACTERS:,} characters")
    return text


def _bounded(apply: Callable[..., Any], num_subjects: int) -> Callable[..., Any]:
    """A filter or method of a template that takes no number, such as a width, above _MOST_CHARACTERS."""

    @functools.wraps(apply)  # with Jinja's marks, such as pass_context
    def bounded(*given: Any, **options: Any) -> Any:
        for one in (*given[num_subjects:], *options.values()):
            if isinstance(one, int) and one > _MOST_CHARACTERS:
                raise ValueError(f"{one} is no width: a text has at most {_MOST_CHARACTERS:,} characters")
        made = apply(*given, **options)
        if isinstance(made, str):
            _joined((made,))
        return made

    return bounded


def _chat_environment() -> Any:
    """Jinja as transformers sets it up (`chat_template_utils`), sandboxed: a template is a program from elsewhere.

    NOTE: `run.timeout_s` ends no single call that makes gigabytes, so widths, products and sums are bounded before it.
    One `join`, `replace` or `format` of arguments that are themselves millions long is not: it ends by memory.
    """
    import json
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.compiler import CodeGenerator
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

    def refuse(message: str) -> None:
        raise TemplateError(message)

    class Code(CodeGenerator):
        def visit_Concat(self, node: Any, frame: Any) -> None:  # noqa: N802
            self.write("concat((")  # the environment's, where Jinja writes its own, which nothing bounds
            for one in node.nodes:
                self.visit(one, frame)
                self.write(", ")
            self.write("))")

    class Formatter(SandboxedFormatter):
        def format_field(self, value: Any, format_spec: str) -> Any:
            if re.search(r"\d{5}", format_spec):
                raise TemplateError(f"a format of so many characters: {format_spec}")
            return super().format_field(value, format_spec)

    class Bounded(ImmutableSandboxedEnvironment):
        """Also refuses sums and products of texts and lists, powers and formats that are too long."""

        intercepted_binops = frozenset(("+", "*", "**", "%"))
        code_generator_class = Code
        concat = staticmethod(_joined)  # of `~`, macros and captured blocks

        def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
            if super().wrap_str_format(value) is None:
                return None
            made = functools.partial(Formatter(self).vformat, value.__self__)
            if value.__name__ == "format_map":
                return lambda named: _joined((made((), named),))
            return lambda *given, **named: _joined((made(given, named),))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(side) for side in (left, right) if hasattr(side, "__len__")]
            times = [abs(side) for side in (left, right) if isinstance(side, int)]
            if operator == "%" and isinstance(left, str) and re.search(r"%[^a-zA-Z%]*(\*|\d{5})", left):
                raise TemplateError("a format of so many characters")
            if operator == "+" and sum(sizes) > _MOST_CHARACTERS:
                raise TemplateError(f"a sum of more than {_MOST_CHARACTERS:,} entries")
            if operator == "*" and sizes and times and sizes[0] * times[0] > _MOST_CHARACTERS:
                raise TemplateError(f"a product of more than {_MOST_CHARACTERS:,} entries")
            if operator == "**" and isinstance(right, int) and abs(right) > 1024:
                raise TemplateError(f"a power of {right}")
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, method: Any, *given: Any, **options: Any) -> Any:
            subject = isinstance(getattr(method, "__self__", None), (str, bytes))
            return super().call(context, _bounded(method, 0) if subject else method, *given, **options)

    environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.filters["format"] = lambda text, *given, **named: environment.call_binop(
        None, "%", text, named or given
    )
    for name, one in environment.filters.items():
        environment.filters[name] = _bounded(one, 2 if hasattr(one, "jinja_pass_arg") else 1)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = settings.get(role)
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str):
            found[role] = token
    return found
