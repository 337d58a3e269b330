"""Secrets of known formats, generated at run time from a seed, each in a line in which it could occur.

No secret is in this file: prefixes are joined from pieces, and the rest is random. The secrets have the form that a
provider documents, and give access to nothing.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from typing import NamedTuple

LOWER = string.ascii_lowercase + string.digits
MIXED = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + "234567"
HEX = "0123456789abcdef"
URL_SAFE = MIXED + "-_"
BASE64 = MIXED + "+/"
PEM_LINE = 64


class KnownSecret(NamedTuple):
    kind: str
    # This must not appear anywhere.
    value: str
    # This is the line that contains the value.
    text: str


class Draw:
    """Random pieces from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def of(self, alphabet: str, length: int) -> str:
        """Random characters. If the alphabet has digits, there is at least one, as in every long key."""
        drawn = [self.random.choice(alphabet) for _ in range(length)]
        if alphabet[-1] != "z" and any(c.isdigit() for c in alphabet):
            drawn[self.random.randrange(1, length)] = self.random.choice([c for c in alphabet if c.isdigit()])
        return "".join(drawn)

    def hex(self, length: int) -> str:
        return self.of(HEX, length)

    def uuid(self) -> str:
        return "-".join(self.hex(length) for length in (8, 4, 4, 4, 12))

    def password(self) -> str:
        return self.of(string.ascii_letters, 5) + self.of("!#%+*.", 1) + self.of(string.digits, 3) + self.of(LOWER, 4)

    def one(self, *choices: str) -> str:
        return self.random.choice(choices)

    def lines(self, count: int) -> list[str]:
        return [self.of(BASE64, PEM_LINE) for _ in range(count)] + [self.of(BASE64, 38) + "=="]

    def jwt(self) -> str:
        header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()).decode().rstrip("=")
        claims = {"sub": self.of(string.digits, 10), "iat": self.random.randrange(10**9, 2 * 10**9)}
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"{header}.{payload}.{self.of(URL_SAFE, 43)}"


def dashed(words: str) -> str:
    return "-" * 5 + words + "-" * 5


def prefixed(*pieces: str) -> Callable[[Draw, str, int], str]:
    """A value that begins with these pieces joined. They are separate, or scanners would report this file as a leak."""
    return lambda draw, alphabet, length: "".join(pieces) + draw.of(alphabet, length)


# Keys that can be recognised without context: kind, pieces of the prefix, alphabet, length of the rest.
PREFIXED: tuple[tuple[str, tuple[str, ...], str, int], ...] = (
    ("contextfold token", ("ct", "x_"), URL_SAFE, 43),
    ("aws access key id", ("AK", "IA"), UPPER, 16),
    ("aws temporary key id", ("AS", "IA"), UPPER, 16),
    ("google api key", ("AI", "za"), URL_SAFE, 35),
    ("google access token", ("ya", "29."), URL_SAFE, 120),
    ("google client secret", ("GOC", "SPX-"), URL_SAFE, 28),
    ("github personal token", ("gh", "p_"), MIXED, 36),
    ("github oauth token", ("gh", "o_"), MIXED, 36),
    ("github user token", ("gh", "u_"), MIXED, 36),
    ("github server token", ("gh", "s_"), MIXED, 36),
    ("github refresh token", ("gh", "r_"), MIXED, 76),
    ("github fine-grained token", ("github", "_pat_"), MIXED, 82),
    ("gitlab personal token", ("gl", "pat-"), URL_SAFE, 20),
    ("gitlab runner token", ("gl", "rt-"), URL_SAFE, 20),
    ("gitlab deploy token", ("gl", "dt-"), URL_SAFE, 20),
    ("bitbucket app password", ("AT", "BB"), MIXED, 32),
    ("atlassian token", ("ATA", "TT3"), URL_SAFE, 180),
    ("stripe live key", ("sk", "_live_"), MIXED, 24),
    ("stripe test key", ("sk", "_test_"), MIXED, 24),
    ("stripe restricted key", ("rk", "_live_"), MIXED, 24),
    ("stripe webhook secret", ("wh", "sec_"), MIXED, 32),
    ("openai key", ("s", "k-"), MIXED, 48),
    ("openai project key", ("sk-", "proj-"), URL_SAFE, 150),
    ("anthropic key", ("sk-", "ant-", "api03-"), URL_SAFE, 95),
    ("hugging face token", ("h", "f_"), MIXED, 34),
    ("replicate token", ("r", "8_"), MIXED, 37),
    ("groq key", ("gs", "k_"), MIXED, 52),
    ("perplexity key", ("pp", "lx-"), MIXED, 48),
    ("xai key", ("xa", "i-"), MIXED, 80),
    ("npm token", ("np", "m_"), MIXED, 36),
    ("pypi token", ("py", "pi-", "AgE", "IcHlwaS5vcmc"), URL_SAFE, 130),
    ("docker token", ("dckr", "_pat_"), URL_SAFE, 27),
    ("rubygems key", ("ruby", "gems_"), HEX, 48),
    ("crates token", ("ci", "o"), MIXED, 32),
    ("nuget key", ("oy", "2"), LOWER, 43),
    ("digitalocean token", ("dop", "_v1_"), HEX, 64),
    ("databricks token", ("da", "pi"), HEX, 32),
    ("new relic key", ("NR", "AK-"), UPPER, 27),
    ("sentry token", ("sntr", "ys_"), MIXED, 90),
    ("grafana cloud key", ("gl", "c_"), BASE64, 80),
    ("vault token", ("hv", "s."), URL_SAFE, 90),
    ("linear key", ("lin", "_api_"), MIXED, 40),
    ("notion token", ("nt", "n_"), MIXED, 46),
    ("figma token", ("fig", "d_"), URL_SAFE, 40),
    ("pulumi token", ("pu", "l-"), HEX, 40),
    ("planetscale password", ("pscale", "_pw_"), URL_SAFE, 43),
    ("supabase token", ("sb", "p_"), HEX, 40),
    ("fly token", ("Fly", "V1 fm2_"), BASE64, 120),
    ("shopify token", ("shp", "at_"), HEX, 32),
    ("square token", ("sq0", "atp-"), URL_SAFE, 22),
    ("mailgun key", ("ke", "y-"), HEX, 32),
    ("twilio key", ("S", "K"), HEX, 32),
    ("doppler token", ("dp", ".pt."), MIXED, 43),
    ("age identity", ("AGE-SECRET", "-KEY-1"), UPPER, 58),
    ("slack app token", ("xa", "pp-1-A"), MIXED, 60),
    ("tailscale key", ("ts", "key-auth-"), MIXED, 30),
)


def composed(draw: Draw) -> dict[str, str]:
    """Keys with an inner structure that can be recognised without context too."""
    digits = string.digits
    return {
        "slack bot token": "xo" + f"xb-{draw.of(digits, 12)}-{draw.of(digits, 13)}-{draw.of(MIXED, 24)}",
        "slack user token": "xo"
        + f"xp-{draw.of(digits, 12)}-{draw.of(digits, 12)}-{draw.of(digits, 12)}-{draw.hex(32)}",
        "sendgrid key": "S" + f"G.{draw.of(URL_SAFE, 22)}.{draw.of(URL_SAFE, 43)}",
        "mailchimp key": f"{draw.hex(32)}-" + f"us{draw.random.randrange(1, 22)}",
        "telegram bot token": f"{draw.of('123456789', 9)}:" + f"AA{draw.of(URL_SAFE, 33)}",
        "airtable token": "pa" + f"t{draw.of(MIXED, 14)}.{draw.hex(64)}",
        "postman key": "PM" + f"AK-{draw.hex(24)}-{draw.hex(34)}",
        "terraform token": f"{draw.of(MIXED, 14)}." + f"atlasv1.{draw.of(URL_SAFE, 67)}",
        "grafana service token": "gl" + f"sa_{draw.of(MIXED, 32)}_{draw.hex(8)}",
        "asana token": "1" + f"/{draw.of('123456789', 16)}:{draw.hex(32)}",
        "azure client secret": f"{draw.of(MIXED, 3)}8" + f"Q~{draw.of(MIXED, 34)}",
        "json web token": draw.jwt(),
        "hubspot token": "pat" + f"-na1-{draw.uuid()}",
    }


def line_with(draw: Draw, value: str) -> str:
    """A line in which a key that can be recognised without context may occur."""
    return draw.one(
        f"the key is {value} and was printed by mistake",
        f"2026-03-04T05:06:07Z INFO client starts with {value}",
        f'{{"id": 7, "note": "{value}"}}',
        f"print('{value}')",
        f"- {value}\n- next",
        f"$ run --verbose {value} out.txt",
        f"{value}",
        f"| {value} | in a table |",
        f"text=({value})",
        json.dumps(json.dumps({"output": f"got {value}\n"})),
    )


def in_context(draw: Draw) -> list[KnownSecret]:
    """Secrets that can be recognised only by their context: kind, value and line."""
    password, key, uuid = draw.password(), draw.of(MIXED, 40), draw.uuid()
    account = draw.of(BASE64, 86) + "=="
    signature, hex32, token = draw.of(MIXED, 43) + "%3D", draw.hex(32), draw.of(URL_SAFE, 32)
    login = base64.b64encode(f"deploy:{password}".encode()).decode()
    hook = f"T{draw.of(UPPER, 10)}/B{draw.of(UPPER, 10)}/{draw.of(MIXED, 24)}"
    channel = f"{draw.of('123456789', 18)}/{draw.of(URL_SAFE, 68)}"
    bot = f"MT{draw.of(MIXED, 24)}.{draw.of(URL_SAFE, 6)}.{draw.of(URL_SAFE, 38)}"
    quoted = json.dumps({"user": "ann", "password": password})
    lines = [
        ("aws secret key", key, f"aws_secret_access_key = {key}"),
        ("azure account key", account, f"DefaultEndpointsProtocol=https;AccountName=a1;AccountKey={account};"),
        ("azure sas signature", signature, f"https://a1.blob.core.windows.net/c?sv=2024-01-01&se=2026&sig={signature}"),
        ("heroku key", uuid, f"HEROKU_API_KEY={uuid}"),
        ("cloudflare token", key, f'cloudflare_api_token: "{key}"'),
        ("twilio auth token", hex32, f"TWILIO_AUTH_TOKEN={hex32}"),
        ("datadog key", hex32, f"DD_API_KEY={hex32}"),
        ("sentry dsn", hex32, f"dsn: https://{hex32}@o450.ingest.sentry.io/12"),
        ("slack webhook", hook, f"POST https://hooks.slack.com/services/{hook}"),
        ("discord webhook", channel, f"https://discord.com/api/webhooks/{channel}"),
        ("discord bot token", bot, f"discord client logs in as {bot}"),
        ("database address", password, f"postgresql://app:{password}@db.internal:5432/app"),
        ("redis address", password, f"redis://:{password}@cache:6379/0"),
        ("bearer header", token, f"Authorization: Bearer {token}"),
        ("basic header", login, f"authorization: Basic {login}"),
        ("api key header", token, f"x-api-key: {token}"),
        ("session cookie", token, f"Set-Cookie: sessionid={token}; Path=/; HttpOnly"),
        ("query token", token, f"GET /v1/items?page=2&access_token={token}&x=1"),
        ("environment password", password, f"export DB_PASSWORD={password}"),
        ("json password", password, quoted),
        ("escaped json password", password, json.dumps({"body": quoted})),
        ("yaml password", password, f"database:\n  user: app\n  password: {password}\n"),
        ("python password", password, f"connect(user='app', password='{password}')"),
        ("flag password", password, f"$ deploy --password {password} --force"),
        ("client secret", token, f'client_secret = "{token}"'),
        ("curl login", password, f"curl -u admin:{password} https://api.internal/v1"),
        ("netrc password", password, f"machine api.internal login ann password {password}"),
        ("sql password", password, f"CREATE USER app IDENTIFIED BY '{password}';"),
        ("npmrc token", uuid, f"//registry.internal/:_authToken={uuid}"),
        ("triple-quoted password", password, f'password = """{password}"""'),
        ("yaml block", password, f"password: |\n  {password}\nuser: app\n"),
        ("key on the next line", key, f"aws_secret_access_key =\n  {key}\n"),
        ("folded header", token, f"Authorization: Bearer\n {token}\n"),
        ("pass without quotes", password, f"User: ann\nPass: {password}\n"),
        ("password in spanish", password, f"contraseña: {password}"),
        ("password in french", password, f"Mot de passe : {password}"),
        ("password in russian", password, f"Пароль: {password}"),
        ("password in chinese", password, f"密码：{password}"),
        (
            "address with an unescaped password",
            f"{password}@{key[:4]}/7x",
            f"postgres://u:{password}@{key[:4]}/7x@db/app",
        ),
        ("oracle address", password, f"jdbc:oracle:thin:scott/{password}@db:1521:x"),
        ("wireless key", password, f'network={{\n  psk="{password}"\n}}'),
        ("key file passphrase", password, f'$ ssh-keygen -t ed25519 -N "{password}" -f id'),
        ("archive password", password, f"$ zip -r -P {password} out.zip docs"),
        ("kubernetes value", password, f"- name: DB_PASSWORD\n  value: {password}\n"),
    ]
    return [KnownSecret(kind, value, text) for kind, value, text in lines]


def private_keys(draw: Draw) -> list[KnownSecret]:
    """Keys of several lines; for each, the value is a line of its body."""
    secrets = []
    for kind, label in (
        ("rsa key", "RSA PRIVATE KEY"),
        ("ec key", "EC PRIVATE KEY"),
        ("pkcs8 key", "PRIVATE KEY"),
        ("openssh key", "OPENSSH PRIVATE KEY"),
        ("pgp key", "PGP PRIVATE KEY BLOCK"),
    ):
        body = draw.lines(5)
        pem = "\n".join([dashed(f"BEGIN {label}"), *body, dashed(f"END {label}")])
        secrets.append(KnownSecret(kind, body[2], pem))
        if kind == "pkcs8 key":
            account = json.dumps({"type": "service_account", "private_key": pem + "\n"})
            secrets.append(KnownSecret("service account key", body[1], account))
            secrets.append(KnownSecret("cut key", body[3], pem[: pem.index(body[4]) + 30]))
    body = draw.lines(4)
    putty = f"PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: {len(body)}\n" + "\n".join(body)
    secrets.append(KnownSecret("putty key", body[1], f"{putty}\nPrivate-MAC: {draw.hex(64)}\n"))
    return secrets


def known_secrets(seed: int) -> list[KnownSecret]:
    """One secret of each kind; another seed gives other secrets in other lines."""
    draw = Draw(seed)
    alone = {kind: prefixed(*pieces)(draw, alphabet, length) for kind, pieces, alphabet, length in PREFIXED}
    alone |= composed(draw)
    secrets = [KnownSecret(kind, value, line_with(draw, value)) for kind, value in alone.items()]
    return secrets + in_context(draw) + private_keys(draw)
