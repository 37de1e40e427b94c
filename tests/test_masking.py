"""Tokens, keys and passwords are masked in every form in which they stand in command lines, settings and text."""

import json

import pytest

from hf_compat.masking import is_secret_name, masked_text, masked_value, masked_words, secrets_in

SECRET = "s3cr3t-Value.9"
SHAPED = {
    "hugging face": "hf_AbCdEfGhIj0123456789",
    "openai": "sk-proj-abcdef0123456789",
    "github": "ghp_0123456789abcdefABCDEF",
    "github, fine-grained": "github_pat_11ABCDEFG0123456789_abc",
    "gitlab": "glpat-0123456789abcdef",
    "slack": "xoxb-123456789012-abcdef",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "google": "AIzaSyA0123456789abcdefghij",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-_123",
}

WORDS = {
    "an option": ["--hub_token", SECRET],
    "with an equals sign": [f"--hub_token={SECRET}"],
    "with hyphens": ["--hub-token", SECRET],
    "in camel case": ["--hubToken", SECRET],
    "in capitals": ["--HUB_TOKEN", SECRET],
    "with one hyphen": ["-token", SECRET],
    "abbreviated": ["--hub_tok", SECRET],
    "abbreviated more": ["--hub_to", SECRET],
    "a short option": ["-t", SECRET],
    "a short option with an equals sign": [f"-t={SECRET}"],
    "a key": ["--wandb_key", SECRET],
    "an api key": ["--api-key", SECRET],
    "a key in one word": ["--wandb_apikey", SECRET],
    "a password": ["--db.password", SECRET],
    "an override": [f"hub_token={SECRET}"],
    "an added override": [f"+trainer.hub_token={SECRET}"],
    "a nested option": [f"--training.hub_token={SECRET}"],
    "with spaces": ["--password", f"{SECRET} and more"],
    "with spaces and an equals sign": [f"--password={SECRET} and more"],
    "in quotes": [f"hub_token='{SECRET}'"],
    "json": ["--settings", json.dumps({"hub_token": SECRET, "seed": 1})],
    "json without spaces": [json.dumps({"a": {"wandb_key": SECRET}}, separators=(",", ":"))],
    "json in json": [json.dumps({"a": json.dumps({"token": SECRET})})],
    "a dict of python": ["--settings", str({"hub_token": SECRET})],
    "a list of overrides": [f"--set=a=1,hub_token={SECRET},b=2"],
    "a variable": [f"HF_TOKEN={SECRET}"],
    "a variable after an option": ["--env", f"AWS_SECRET_ACCESS_KEY={SECRET}"],
    "an address": [f"https://user:{SECRET}@huggingface.co/m"],
    "an address with a token alone": [f"https://{SECRET}@huggingface.co/m"],
    "an address without a scheme": [f"user:{SECRET}@host.org"],
    "a query": [f"https://host/path?seed=1&access_token={SECRET}&b=2"],
    "a header": ["-H", f"Authorization: Bearer {SECRET}"],
    "a header with a key": ["--header", f"X-Api-Key: {SECRET}"],
    "yaml": [f"token: {SECRET}"],
    **{f"the look of {name}": ["--run_name", f"run-{value}"] for name, value in SHAPED.items()},
}


def hidden(words):
    """Return what must not be shown of ``words``."""
    return next((value for value in SHAPED.values() if value in " ".join(words)), SECRET)


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_a_command_line_is_shown_without_secrets(words):
    """No form of an option shows its secret; what stands before and after it is shown."""
    shown = masked_words(["--seed", "1", *words, "--output_dir", "out/t"])
    assert hidden(words) not in " ".join(shown)
    assert "***" in " ".join(shown)
    assert shown[:2] == ["--seed", "1"]
    assert shown[-2:] == ["--output_dir", "out/t"]


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_text_is_shown_without_secrets(words):
    """A traceback or log that repeats the command line shows no secret either."""
    if words[0].startswith("--password"):
        words = [word.removesuffix(" and more") for word in words]
    text = f"Traceback:\n  File 'x.py', line 1\nerror: {' '.join(words)}\nseed=1"
    assert hidden(words) not in masked_text(text)
    assert masked_text(text).endswith("\nseed=1")


@pytest.mark.parametrize(
    "words",
    [
        ["--pad_token", "<pad>", "--max_new_tokens", "20", "--key", "text"],
        ["--use_auth_token", "True", "--token", "None", "-t", "0.7", "-k", "50"],
        ["--hub_token", "--seed", "1"],
        ["--hub_model_id", "me/model", "--model", "hf_compat", "hf_trainer.py", "--lr", "1e-5"],
        ["https://huggingface.co/a/b?rev=me@1", "s3://bucket/key", "user@host:path", "a:b"],
        ["--tokenizer_name", "x", "--monkey", "y", "--revision", "0123456789abcdef0123456789abcdef01234567"],
        ["--include_num_input_tokens_seen", "all", "--author", "me", "--sk-learn", "1"],
    ],
)
def test_what_is_no_secret_is_shown(words):
    """Vocabulary tokens, numbers, booleans, names of models and addresses without a password stay."""
    assert masked_words(words) == words


def test_known_secrets_are_masked_wherever_they_are():
    """A secret of the command line or the environment is masked where no name stands before it."""
    known = secrets_in(
        ["--hub_token", SECRET, "-t=abc", "user:pass-word@host"], {"MY_API_KEY": "12345678", "A": "b" * 9}
    )
    assert known == {SECRET, "12345678", "user:pass-word"}
    assert masked_text(f"401: {SECRET} of 12345678", known) == "401: *** of ***"


def test_settings_are_masked_at_any_depth():
    """Dicts and lists in a field are shown without their secrets, all else unchanged."""
    given = {"hub_token": SECRET, "seed": 1, "kwargs": {"wandb_key": SECRET, "x": [f"token={SECRET}", None, 2.0]}}
    shown = {"hub_token": "***", "seed": 1, "kwargs": {"wandb_key": "***", "x": ["token=***", None, 2.0]}}
    assert masked_value("", given) == shown
    assert masked_value("hub_token", "<HUB_TOKEN>") == "<HUB_TOKEN>"


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("HF_TOKEN", True),
        ("WANDB_API_KEY", True),
        ("hub_token", True),
        ("--secret", True),
        ("key", False),
        ("tokens", False),
        ("tokenizer", False),
        ("pad_token", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("PWD", False),
        ("DB_PWD", True),
        ("turkey", False),
    ],
)
def test_names_of_secrets(name, is_secret):
    """A name is judged by its last part."""
    assert is_secret_name(name) is is_secret
