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
    "telegram": "123456789:AAE0123456789abcdefABCDEF-_012345",
    "discord": "https://discord.com/api/webhooks/1234/abc-_DEF",
    "teams": "https://me.webhook.office.com/webhookb2/1a2b@3c/IncomingWebhook/4d",
    "pgp": "-----BEGIN PGP PRIVATE KEY BLOCK-----\nabc\n-----END PGP PRIVATE KEY BLOCK-----",
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
    "yaml with an anchor": [f"token: &mine {SECRET}"],
    "yaml with a tag": [f"token: !!str {SECRET}"],
    "a list of yaml": [f"hub_tokens:\n  - {SECRET}\n  - x{SECRET}"],
    "a text of yaml": [f"token: |\n  {SECRET}\n  more {SECRET}"],
    "toml": [f'token = """{SECRET}"""'],
    "bytes of python": [f"login(token=b'{SECRET}')"],
    "a list in json": [json.dumps({"api_keys": [SECRET, f"x{SECRET}"]})],
    "an object in json": [json.dumps({"token": {"value": SECRET}})],
    "a list of an override": [f"api_keys=[{SECRET},x{SECRET}]"],
    "a command line in an error": [f"Command '['python', 'x.py', '--token', '{SECRET}']' returned"],
    "a header of another scheme": ["-H", f"Authorization: Token {SECRET}"],
    "a header in small letters": ["-H", f"authorization: bearer {SECRET}"],
    "cookies": ["-H", f"Cookie: session=1; id={SECRET}"],
    "an access key": [f"AWS_ACCESS_KEY_ID={SECRET}"],
    "a key in a word": ["--wandbkey", SECRET],
    "a token in a word": [f"HFTOKEN={SECRET}"],
    "several tokens": ["--hub_tokens", SECRET],
    "a connection": [f"Server=x;Uid=y;Pwd={SECRET};"],
    "a signature": [f"https://a.blob.core.windows.net/c?sv=1&sig={SECRET}"],
    "a short option with its value right behind it": [f"-t{SECRET}"],
    "a short option and capitals": ["-tS3CR3TVALUE"],
    "a short option and capitals alone": ["-tCAPITALS"],
    "a short option and hexadecimal digits": ["-k0123456789abcdef"],
    "a short option and a token": [f"-t{SHAPED['hugging face']}"],
    "a value with a hyphen before": ["--hub_token", f"-{SECRET}"],
    "a value with two hyphens before": ["--hub_token", f"--{SECRET}"],
    "a value with a hyphen before, in a word": [f"--hub_token=-{SECRET}"],
    "a value with a hyphen before of a short option": ["-t", f"-{SECRET}"],
    "a value with a hyphen before, in a list": [f"['--token', '-{SECRET}']"],
    "a name with an encoded underscore": [f"https://host/path?access%5Ftoken={SECRET}&b=2"],
    "a name with an encoded hyphen": [f"api%2dkey={SECRET}"],
    "a name with an encoded letter": [f"https://host/path?%74oken={SECRET}"],
    "an encoded name of an encoded value": [f"pass%77ord={SECRET}%26{SECRET}"],
    "an address within an address": [f"https://host?next=https%3A%2F%2Fh%3Faccess_token%3D{SECRET}%26b%3D2"],
    "an address encoded twice": [f"https://host?next=https%253A%252F%252Fh%253Ftoken%253D{SECRET}"],
    "encoded json": [f"https://host?settings=%7B%22hub_token%22%3A%22{SECRET}%22%7D"],
    "an encoded address with a password": [f"proxy=http%3A%2F%2Fme%3A{SECRET}%40host%2F"],
    "xml": [f"<token>{SECRET}</token>"],
    "xml in a document": [f"<a><b>1</b><hub_token>{SECRET}</hub_token><c/></a>"],
    "xml with attributes": [f'<ns:Password encoding="plain">{SECRET}</ns:Password>'],
    "xml in lines": [f"<apiKey>\n  {SECRET}\n</apiKey>"],
    "xml of unparsed text": [f"<secret><![CDATA[{SECRET}]]></secret>"],
    "xml within xml": [f"<secret><value>{SECRET}</value></secret>"],
    "escaped xml": [f"&lt;token&gt;{SECRET}&lt;/token&gt;"],
    "an attribute of xml": [f'<login token="{SECRET}"/>'],
    "a user": ["-u", f"me:{SECRET}"],
    "a user and a password with a colon": ["-u", f"me:x:{SECRET}"],
    "a user without space": [f"-ume:{SECRET}"],
    "a user by a long option": ["--user", f"me:{SECRET}"],
    "a user by a long option with an equals sign": [f"--user=me:{SECRET}"],
    "a user of a proxy": ["-U", f"me:{SECRET}", "--proxy-user", f"me:{SECRET}"],
    "a user in a list": [f"['curl', '-u', 'me:{SECRET}', '--user', 'me:{SECRET}']"],
    **{f"the look of {name}": ["--run_name", f"run-{value}"] for name, value in SHAPED.items()},
}


def hidden(words):
    """Return what must not be shown of ``words``."""
    known = (*SHAPED.values(), "S3CR3TVALUE", "CAPITALS", "0123456789abcdef")
    return next((value for value in known if value in " ".join(words)), SECRET)


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
        ["-train", "-trainFile", "-test_data", "-top_k", "-kfold", "-topK", "-tokenizerURL", "-threads16", "-k50"],
        ["-t0.7", "-t1e-5", "-t5-base", "-temperature0.7", "-timeout30s", "-test=1", "-tokenizer_name=a1b2c3"],
        ["-the", "-k", "none"],
        ["--hub_token", "--per_device_train_batch_size", "8", "--token", "-trainFile", "x", "-t", "-1"],
        ["-u", "train.py", "-u", "https://host:80/x", "--user", "1000:1000", "-u1000:1000", "-u", "C:\\data", "-u:"],
        ["<pad_token>x</pad_token>", "<key>text</key>", "<token>None</token>", "<token/>", "<token>text", "a<b>c</b>"],
        ["https://host/a%20b?pad%5Ftoken=x&seed=1", "100%", "50%|###", "a%3Db", "%74okens=2"],
    ],
)
def test_what_is_no_secret_is_shown(words):
    """Vocabulary tokens, numbers, booleans, names of models and addresses without a password stay."""
    assert masked_words(words) == words


@pytest.mark.parametrize(
    "text", ["y = -torch.log(x1y2z3)", "-kernel_size2d[0]", "- t1x2y3z4", "x-t1x2y3z4", "-u: me:x"]
)
def test_code_is_shown(text):
    """What looks like an option in a traceback or a difference of two files stays."""
    assert masked_text(text) == text


def test_several_values_of_an_option_are_masked():
    """What follows the name of several keys, up to the next option, are keys."""
    assert masked_words(["--api_keys", SECRET, "x" + SECRET, "--seed", "1"]) == [
        "--api_keys",
        "***",
        "***",
        "--seed",
        "1",
    ]
    assert masked_words(["--api_key", SECRET, "data.json"]) == ["--api_key", "***", "data.json"]


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
        ("OLDPWD", False),
        ("DB_PWD", True),
        ("--pwd", True),
        ("bos_token_id", False),
        ("pad_token_value", False),
        ("max_new_tokens", False),
        ("label_value", False),
        ("hockey", False),
        ("turkey", False),
    ],
)
def test_names_of_secrets(name, is_secret):
    """A name is judged by its last part."""
    assert is_secret_name(name) is is_secret
