"""Addresses of OpenAI-compatible servers, and providers' variables: those of servers, and those of keys.

LiteLLM reads them in the code of each provider. For most, neither ``get_llm_provider`` nor
``get_complete_url`` tells the address of a call, and ``validate_environment`` misses keys; so these functions
recognise them by their names.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from reward_kit.agent.base.redaction import without_password
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OPENAI = "openai"
_OTHER_NAMES = {
    "bedrock": ("AWS",),
    "cohere": ("CO",),
    "gemini": ("GOOGLE",),
    "huggingface": ("HF",),
    "meta": ("LLAMA",),
    "openrouter": ("OR",),
    "sagemaker": ("AWS",),
    "vertex": ("GOOGLE",),
    "volcengine": ("ARK",),
    "watsonx": ("WX", "WML"),
}
"""First words of variables that do not begin with the provider's name."""
_SERVER = re.compile(r"_(API_BASE|URL|ENDPOINT|REGION|REGION_NAME|LOCATION|PROJECT|PROFILE|API_VERSION)$")
_ADDRESS = re.compile(r"_(API_BASE|BASE_URL|RUNTIME_ENDPOINT)$")
_KEY = re.compile(r"_(API_?)?(KEY|TOKEN)(_ID|_BEDROCK)?$")


def server_variables(provider: str) -> dict[str, str]:
    """The variables that may lead calls to another server, whose answers are others."""
    if provider == OPENAI:
        return {"OPENAI_BASE_URL": base_from_environment(provider) or ""}
    # without an address of their own, calls to many providers go where OpenAI's would
    found = _variables(provider, "OPENAI", "LITELLM")
    return {name: os.environ[name] for name in found if _SERVER.search(name)}


def key_variables(provider: str) -> tuple[list[str], bool]:
    """The variables that hold the provider's key, and True; if none is set the usual one, and False."""
    name = re.sub("_(chat|converse|text)$", "", provider).upper().replace("-", "_")
    usual = "AWS_ACCESS_KEY_ID" if name in ("BEDROCK", "SAGEMAKER") else f"{name}_API_KEY"
    found = [usual] if usual in os.environ or provider == OPENAI else list(_variables(provider))
    found = [name for name in found if _KEY.search(name) and os.environ.get(name, "").strip()]
    return found or [usual], bool(found)


def base_from_environment(provider: str) -> str | None:
    """The address that the environment gives for an OpenAI-compatible server."""
    if provider != OPENAI:
        return None
    return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")


def needs_no_key(provider: str, api_base: str | None = None) -> bool:
    """True for an OpenAI-compatible server on this machine or network for which no key is set."""
    if provider != OPENAI or os.environ.get("OPENAI_API_KEY", "").strip():
        return False
    host = urlsplit(api_base or base_from_environment(provider) or "").hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return bool(host) and ("." not in host or host.endswith((".local", ".internal", ".localhost")))


def addresses(provider: str, model_args: dict[str, Any]) -> list[str]:
    """The server's address that is given, or those in the environment, one of which may be the server's."""
    given = model_args.get("api_base") or model_args.get("base_url")
    if not given and provider == OPENAI:
        given = base_from_environment(provider) or ""
    named = (os.environ[name] for name in _variables(provider) if _ADDRESS.search(name))
    return [one for one in (named if given is None else [str(given)]) if one]


def check_setup(provider: str, model_args: dict[str, Any], *, place: str) -> None:
    """Raise ``ModelSetupError`` for a server's address that is no URL, and for a key that cannot be sent."""
    for address in addresses(provider, model_args):
        _check_address(address, place, append=provider == OPENAI)
    names, is_set = key_variables(provider)
    keys = {f"the value of {name}": os.environ[name] for name in names if is_set}
    if model_args.get("api_key"):
        keys = {"the model argument api_key": model_args["api_key"]}
    keys |= {f"the header {name}": value for name, value in (model_args.get("extra_headers") or {}).items()}
    for name, value in keys.items():
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            is_end = value.rstrip().isascii() and value.rstrip().isprintable()
            fault = "ends with a line end" if is_end else "contains a character that no header can hold"
            raise ModelSetupError(f"{name} {fault}", place=place, remedy="Set it again without that.")


def without_key(names: str, place: str) -> ModelSetupError:
    """The error for a model whose key is not set in any of the variables ``names``."""
    remedy = "Set it in the environment or in a .env file."
    return ModelSetupError(f"{names} is not set", place=place, remedy=remedy)


def _check_address(address: str, place: str, *, append: bool) -> None:
    """``append``: the interface's path is put behind the address as it is, so that it has no query."""
    shown = without_password(address)
    if "://" not in address and "@" in address:
        shown = f"***@{address.rpartition('@')[2]}"
    fault, remedy = "", None
    if not address.lower().startswith(("http://", "https://")):
        fault = "has no http:// or https://"
        remedy = f"Write http://{shown}, for example." if "://" not in address else None
    elif append and re.search(r"[?#]", address):
        shown, fault = f"{shown.partition('?')[0]}?...", "has a query"
        remedy = "Leave it out; --model-arg extra_headers={...} can hold what the server needs."
    else:
        try:
            parts = urlsplit(address)
            fault = "" if parts.hostname and parts.port != 0 else "names no server"
        except ValueError as error:  # of a port, or of the brackets of IPv6
            fault = f"is no URL ({error})"
    if fault:
        raise ModelSetupError(f"the server's address {shown!r} {fault}", place=place, remedy=remedy)


# -- proxies

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def proxy_of(address: str) -> str | None:
    """The variable, with its value, that names the proxy for requests to ``address``."""
    import urllib.request

    parts = urlsplit(address)
    if parts.hostname is None or urllib.request.proxy_bypass(parts.hostname):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if value := os.environ.get(variable):
                return f"{variable}={without_password(value)}"
    return None


def bypass_proxies(servers: Iterable[str]) -> str | None:
    """Exclude this machine from the environment's proxies; return a note if a server is on it."""
    here = [server for server in servers if urlsplit(server).hostname in _THIS_MACHINE]
    notes = [
        f"{without_password(one)} is called directly, not through {proxy_of(one)}"
        for one in here
        if proxy_of(one)
    ]
    if any(map(proxy_of, ("http://127.0.0.1", "http://localhost"))):
        for name in ("NO_PROXY", "no_proxy"):
            kept = [host.strip() for host in os.environ.get(name, "").split(",") if host.strip()]
            os.environ[name] = ",".join(dict.fromkeys([*kept, *_THIS_MACHINE]))
    return notes[0] if notes else None


def _variables(provider: str, *more: str) -> Iterator[str]:
    """The variables of the environment that begin with the provider's name, or with one of ``more``."""
    name = re.split("[-_]", provider)[0].upper()
    others = {*_OTHER_NAMES.get(name.lower(), ()), *more}
    for variable in sorted(os.environ):
        word = variable.partition("_")[0]
        if word in others or word.startswith(name) or (len(word) > 3 and name.startswith(word)):
            yield variable


# -- endpoints

DEFAULT_BASE = "https://api.openai.com/v1"
PLAIN_MODELS = re.compile(r"(gpt-4o|gpt-4\.1|gpt-4-turbo|gpt-4|gpt-3\.5-turbo)(-[\w.-]+)?")
"""OpenAI's own models whose requests LiteLLM passes on as they are."""
_REWRITTEN = re.compile(
    r"(^|[/-])(o\d|gpt-5|gpt-6|chatgpt|codex|computer-use)|audio|search|realtime|transcribe|tts"
)
"""Parts of the names of models for which LiteLLM renames or drops parameters, or takes another interface."""
_PASSED_ON = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "presence_penalty",
        "return_token_ids",
        "seed",
        "stop",
        "temperature",
        "tool_choice",
        "top_p",
        "user",
    }
)
_OF_THE_CONNECTION = frozenset({"api_base", "base_url", "api_key", "extra_headers"})
_LITELLM_SETTINGS = ("LITELLM_PROXY_API_BASE", "OPENAI_ORGANIZATION", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
"""With one of these in the environment LiteLLM's clients send what the direct client does not."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model's name at an OpenAI-compatible server, the headers, and the server's address."""

    model: str
    headers: dict[str, str]
    base: str


def find_endpoint(name: str, provider: str | None, model_args: dict[str, Any]) -> Endpoint | None:
    """The endpoint of a model that can be asked directly; None for one that LiteLLM has to ask.

    These are models of the provider ``openai`` (also at other addresses: vLLM, SGLang, Ollama and most others
    speak its protocol), called with arguments that are passed on unchanged. Raises ``ModelSetupError`` for an
    address that is no URL, and for a key that is not set, or that cannot be sent.
    """
    if not model_args.keys() <= _PASSED_ON | _OF_THE_CONNECTION or any(
        map(os.environ.get, _LITELLM_SETTINGS)
    ):
        return None
    model = _openai_name(name, provider)
    if model is None or _REWRITTEN.search(model):
        return None
    given = model_args.get("api_base") or model_args.get("base_url")
    place = f"model {model} ({OPENAI})"
    check_setup(OPENAI, model_args, place=place)
    base = str(given or base_from_environment(OPENAI) or DEFAULT_BASE).rstrip("/")
    base, account = _without_account(base)
    key = str(model_args.get("api_key") or "").strip() or os.environ.get("OPENAI_API_KEY", "").strip()
    if not key and (account or needs_no_key(OPENAI, given)):
        key = "none"
    if not key:
        if "litellm" in sys.modules:  # the program may have given it a key
            return None
        raise without_key("OPENAI_API_KEY", place)
    headers = {
        # an address with user and password asks for these, and there is one such header only
        "Authorization": f"Basic {account}" if account else f"Bearer {key}",
        "Content-Type": "application/json",
        "Accept": "application/json",
        **(model_args.get("extra_headers") or {}),
    }
    return Endpoint(model, headers, base)


def body_arguments(model_args: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that belong into the request's body."""
    return {name: value for name, value in model_args.items() if name in _PASSED_ON and value is not None}


def _without_account(base: str) -> tuple[str, str | None]:
    """The address without user and password, and these as the header sends them."""
    parts = urlsplit(base)
    if parts.username is None:
        return base, None
    account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return bare.geturl(), base64.b64encode(account.encode()).decode()


def _openai_name(name: str, provider: str | None) -> str | None:
    """The model's name without its provider, if the provider speaks OpenAI's protocol."""
    prefix, slash, rest = name.partition("/")
    if slash and prefix == OPENAI:
        return rest or None
    if provider == OPENAI:
        return name or None
    return name if provider is None and PLAIN_MODELS.fullmatch(name) else None
