"""The development set of everyday secrets: texts with one secret each, sorted into families.

Every value is drawn from a seed, so that no secret is written here. The rules may be tuned on this set. The held-out
set in `heldout_secrets.py` has other names, other syntaxes and other values and shows whether the rules were tuned too
closely.
"""

from __future__ import annotations

import base64
import json
import string
import urllib.parse
from collections.abc import Callable, Sequence

from bench.labelled_secrets import HEX, MIXED, Labelled, SecretSource

UPPER_DIGITS = string.ascii_uppercase + string.digits
LOWER_DIGITS = string.ascii_lowercase + string.digits
URL_SAFE = MIXED + "-_"
BASE64 = MIXED + "+/"
DASHES = "-" * 5

Template = Callable[[SecretSource, str], str]


def with_digit(source: SecretSource, alphabet: str, length: int) -> str:
    """Random characters with at least one letter and one digit, as in nearly every generated key."""
    value = list(source.of(alphabet, length))
    value[source.random.randrange(1, length)] = source.random.choice(string.digits)
    value[0] = source.random.choice([character for character in alphabet if character.isalpha()])
    return "".join(value)


def bracketed_password(source: SecretSource) -> str:
    """A password full of brackets and signs that have a meaning in some syntax, without quotes, spaces and commas."""
    signs = "{}()[]$#@!%^*-_+~.?/"
    return "".join(source.of(MIXED, 3) + source.of(signs, 1) for _ in range(6)) + source.of(MIXED, 2) + "7"


def plain_password(source: SecretSource) -> str:
    return source.random.choice(
        (
            f"{source.word().title()}{source.random.randrange(100, 9999)}!",
            f"{source.word()}{source.word().title()}{source.random.randrange(10, 999)}",
            with_digit(source, MIXED, 12),
            with_digit(source, MIXED + "!#%*+.^_~", 16),
        )
    )


def quoted_value(source: SecretSource) -> str:
    return source.random.choice((plain_password, bracketed_password, service_key))(source)


def service_key(source: SecretSource) -> str:
    return with_digit(source, *source.random.choice(((MIXED, 20), (MIXED, 32), (HEX, 32), (URL_SAFE, 43), (HEX, 64))))


def short_key(source: SecretSource) -> str:
    return with_digit(source, *source.random.choice(((MIXED, 20), (LOWER_DIGITS, 20), (URL_SAFE, 24))))


def uuid(source: SecretSource) -> str:
    return "-".join(source.of(HEX, size) for size in (8, 4, 4, 4, 12))


def pem(source: SecretSource, label: str, lines: int = 6, width: int = 64) -> tuple[list[str], str]:
    """The lines of a private key with its markers, and the secret: a line of its body."""
    body = [source.of(BASE64, width) for _ in range(lines)] + [source.of(BASE64, width // 2) + "=="]
    name = f"{label} PRIVATE".strip() + " KEY"
    return [f"{DASHES}BEGIN {name}{DASHES}", *body, f"{DASHES}END {name}{DASHES}"], body[lines // 2]


# Names with a prefix or suffix around the word that marks a secret, and names of one word.
NAMES = (
    "API_KEY_OPENAI",
    "TOKEN_GITHUB",
    "DB_PASSWORD_PRIMARY",
    "NEXTAUTH_SECRET_V2",
    "secret_id",
    "bindpw",
    "rootpw",
    "adminpass",
    "storepass",
    "wifi_psk",
    "apiKeyProd",
    "my_password_secure",
    "auth_key",
    "database_pass",
    "service_key",
    "priv_key",
    "STRIPE_SECRET_LIVE",
    "dbPasswd",
    "user_pwd",
    "oauth_token_secret",
)
KEY_NAMES = ("stripe_key", "MAPS_KEY", "mailerKey", "consumer_key", "algolia_admin_key", "LICENSE_KEY")

QUOTED: dict[str, tuple[str, ...]] = {
    "assignment": ('{n} = "{v}"', "{n} = '{v}'", '{n}="{v}"', "{n}: '{v}'", '"{n}": "{v}",', '{n} := "{v}"'),
    "operator": (
        '{n} ?= "{v}"',
        '{n} ::= "{v}"',
        '{n} :::= "{v}"',
        '{n} .= "{v}";',
        "{n} += '{v}'",
        '$this->{n} = "{v}";',
        '{n} -> "{v}"',
        '{n} = @"{v}";',
        '{n} "{v}"',
        "{n} '{v}';",
        '{n} => "{v}"',
        '{n} ||= "{v}"',
        '{n} == "{v}"',
        'if ("{v}" == {n}) {{',
        'std::string {n}("{v}");',
        '{n}.assign("{v}");',
    ),
    "fallback": (
        'x = os.getenv("{n}", "{v}")',
        'x = os.environ.get("{n}") or "{v}"',
        "$x = getenv('{n}') ?: '{v}';",
        "const x = process.env.{n} || '{v}';",
        'x = cfg.get("{n}", "{v}")',
        "x: ${{{n}:-{v}}}",
        '{n} = x or "{v}"',
        '${n} = $p ?: "{v}";',
        'val {n} = props["k"] ?: "{v}"',
        "const {n} = process.env.T || '{v}';",
        "  {n}: env.T ?? '{v}',",
    ),
    "markup": (
        "<{n}>\n    {v}\n</{n}>",
        "<{n}>{v}</{n}>",
        '<item {n}="{v}"/>',
        '<property name="{n}" value="{v}"/>',
        "<app:{n} val='{v}'/>",
        '<{n} required="true"\n  value = "{v}">',
        '<setting name="{n}"><value>{v}</value></setting>',
    ),
}
PLAIN = (
    "{n}={v}",
    "{n}: {v}",
    "{n} = {v}",
    "{n}?={v}",
    "{n} ::= {v}",
    "{n}+={v}",
    "export {n}={v}",
    "  - {n}={v}",
    "{n}:\n    {v}",
)


def named(source: SecretSource) -> list[Labelled]:
    labelled = []
    for family, syntaxes in QUOTED.items():
        for syntax in syntaxes:
            name, value = source.random.choice(NAMES), quoted_value(source)
            if family == "markup" or "${{" in syntax:
                value = plain_password(source)
            labelled.append(Labelled(f"{family}: {syntax}", syntax.format(n=name, v=value) + "\n", value))
    for name in NAMES:
        syntax, value = source.random.choice(QUOTED["assignment"]), quoted_value(source)
        labelled.append(Labelled(f"name: {name}, quoted", syntax.format(n=name, v=value) + "\n", value))
        syntax, value = source.random.choice(PLAIN), service_key(source)
        labelled.append(Labelled(f"name: {name}, plain", syntax.format(n=name, v=value) + "\n", value))
    for name in KEY_NAMES:
        syntax, value = source.random.choice((*QUOTED["assignment"], *PLAIN[:3])), short_key(source)
        labelled.append(Labelled(f"name: {name}, 20 characters", syntax.format(n=name, v=value) + "\n", value))
    for syntax in PLAIN:
        value = source.random.choice((plain_password, bracketed_password))(source)
        labelled.append(Labelled(f"plain: {syntax}", syntax.format(n="db_password", v=value) + "\n", value))
    return labelled


def second_copies(source: SecretSource) -> list[Labelled]:
    password, key = plain_password(source), service_key(source)
    texts = {
        "in a log": (password, f"DB_PASSWORD={password}\nconnecting as app / {password} to db1\n"),
        "as an argument": (key, f'token = "{key}"\n\nclient.call({key!r}, retries=2)\n'),
        "before its name": (key, f"using {key}\napi_key: {key}\n"),
        "url encoded": (key + "/+9", f'secret = "{key}/+9"\nGET /cb?x={urllib.parse.quote(key + "/+9", safe="")}\n'),
        "in base64": (
            base64.b64encode(key.encode()).decode(),
            f'secret = "{key}"\nencoded {base64.b64encode(key.encode()).decode()}\n',
        ),
    }
    return [Labelled(f"copy: {kind}", text, value) for kind, (value, text) in texts.items()]


def aws_pairs(source: SecretSource) -> list[Labelled]:
    key, secret = "AK" + "IA" + source.of(string.ascii_uppercase + "234567", 16), with_digit(source, BASE64, 40)
    texts = {
        "csv": f"User name,Access key ID,Secret access key\nci,{key},{secret}\n",
        "csv, two columns": f"Access key ID,Secret access key\n{key},{secret}\n",
        "colon": f"s3://{key}:{secret}@bucket\n",
        "colon alone": f"{key}:{secret}\n",
        "arguments": f'client = connect("{key}", "{secret}")\n',
        "arguments on lines": f'client = connect(\n    "{key}",\n    "{secret}",\n)\n',
        "spaces": f"{key} {secret}\n",
    }
    return [Labelled(f"aws: {kind}", text, secret) for kind, text in texts.items()]


def private_keys(source: SecretSource) -> list[Labelled]:
    lines, secret = pem(source, "RSA")
    numbered = "\n".join(f"{number}:{line}" for number, line in enumerate(lines, 1))
    named_lines = "\n".join(f"conf/id_rsa:{number}:{line}" for number, line in enumerate(lines, 1))
    coloured = "\n".join(f"\x1b[32m{number}\x1b[0m\x1b[36m:\x1b[0m{line}" for number, line in enumerate(lines, 1))
    listed = "\n".join(f"  - {line}" for line in lines)
    encoded = base64.b64encode("\n".join(lines).encode()).decode()
    wrapped = "\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))
    texts = {
        "grep -n": (numbered, secret),
        "grep -n over files": (named_lines, secret),
        "coloured": (coloured, secret),
        "a list": (listed, secret),
        "base64, wrapped": (f"data:\n{wrapped}\n", encoded[76 * 3 : 76 * 4]),
        "base64, wrapped and indented": (
            "key: |\n" + "\n".join("    " + line for line in wrapped.split("\n")),
            encoded[76 * 3 : 76 * 4],
        ),
    }
    return [Labelled(f"private key: {kind}", text, value) for kind, (text, value) in texts.items()]


SALTS = (
    "AUTH_KEY",
    "SECURE_AUTH_KEY",
    "LOGGED_IN_KEY",
    "NONCE_KEY",
    "AUTH_SALT",
    "LOGGED_IN_SALT",
    "NONCE_SALT",
)


def files_and_commands(source: SecretSource) -> list[Labelled]:
    password, other = plain_password(source), service_key(source)
    salt = source.of(MIXED + "!@#$%^&*()-_ []{}<>~+=,.;:/?|", 62) + "7Q"
    encoded = base64.b64encode(password.encode()).decode()
    texts = {
        "curl over two lines": (password, f"curl -X POST \\\n  -u admin:{password} \\\n  https://api.internal/v1\n"),
        "curl, quoted": (password, f'curl -s -u "admin:{password}" https://api.internal/v1\n'),
        "pgpass": (password, f"db.internal:5432:shop:app:{password}\n"),
        "pgpass with stars": (password, f"*:*:*:postgres:{password}\n"),
        "go dsn": (password, f'db, err := sql.Open("mysql", "app:{password}@tcp(db.internal:3306)/shop")\n'),
        "kubernetes secret data": (
            encoded,
            f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: app\ntype: Opaque\ndata:\n  value: {encoded}\n",
        ),
        "kubernetes secret string data": (
            other,
            f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: app\nstringData:\n  main: {other}\n",
        ),
        "wordpress salt": (salt, f"define('{source.random.choice(SALTS)}', '{salt}');\n"),
        "base64 of a name and a value": (
            base64.b64encode(f"DB_PASSWORD={password}\nDEBUG=1\n".encode()).decode(),
            "user-data: " + base64.b64encode(f"DB_PASSWORD={password}\nDEBUG=1\n".encode()).decode() + "\n",
        ),
        "url encoded assignment": (
            urllib.parse.quote(other, safe=""),
            "redirect=" + urllib.parse.quote(f"https://a.internal/?api_key={other}&x=1", safe="") + "\n",
        ),
        "url encoded json": (
            urllib.parse.quote(password, safe=""),
            "body=" + urllib.parse.quote(json.dumps({"user": "ann", "password": password}), safe="") + "\n",
        ),
        "password command": (password, f"requirepass {password}\n"),
        "curl, value on the next line": (password, f"curl -u \\\n  admin:{password} https://api.internal/v1\n"),
        "kubernetes secret in compact json": (
            encoded,
            json.dumps({"data": {"value": encoded}, "kind": "Secret"}, separators=(",", ":")) + "\n",
        ),
        "url encoded address": (
            other,
            "next=" + urllib.parse.quote(f"postgres://app:{other}@db.internal/shop", safe="") + "\n",
        ),
    }
    return [Labelled(f"file: {kind}", text, value) for kind, (value, text) in texts.items()]


# Token formats: kind, how it begins, alphabet, length. Prefixes are split, so that no scanner reports this file.
FORMATS: tuple[tuple[str, str, str, int], ...] = (
    ("shopify access token", "shp" + "at_", HEX, 32),
    ("shopify app secret", "shp" + "ss_", HEX, 32),
    ("shopify, long form", "shp" + "ua_", MIXED, 43),
    ("databricks in capitals", "dap" + "i", "0123456789ABCDEF", 32),
    ("sourcegraph", "sg" + "p_", HEX, 40),
    ("sourcegraph, instance", "sgp" + "_local_", HEX, 40),
    ("openshift", "sha" + "256~", URL_SAFE, 43),
    ("easypost", "EZ" + "AK", MIXED, 54),
    ("easypost test", "EZ" + "TK", MIXED, 54),
    ("appsync", "da" + "2-", LOWER_DIGITS, 26),
    ("adafruit", "ai" + "o_", MIXED, 28),
    ("duffel", "duffel" + "_live_", URL_SAFE, 43),
    ("prefect", "pn" + "u_", LOWER_DIGITS, 36),
    ("shippo", "shippo" + "_live_", HEX, 40),
    ("typeform", "tf" + "p_", URL_SAFE, 59),
    ("readme", "rd" + "me_", LOWER_DIGITS, 70),
    ("infracost", "ic" + "o-", MIXED, 32),
    ("flutterwave", "FLW" + "SECK_TEST-", HEX, 32),
    ("dropbox", "s" + "l.", URL_SAFE, 135),
    ("posthog", "ph" + "x_", MIXED, 43),
    ("neon", "na" + "pi_", LOWER_DIGITS, 64),
    ("apify", "apify" + "_api_", MIXED, 36),
    ("octopus deploy", "AP" + "I-", UPPER_DIGITS, 26),
)


def formats(source: SecretSource) -> list[Labelled]:
    labelled = []
    for kind, prefix, alphabet, length in FORMATS:
        value = prefix + with_digit(source, alphabet, length)
        text = source.random.choice(("got {v} there\n", "- {v}\n", 'call("{v}")\n', "x={v}\n", "<i>{v}</i>\n"))
        labelled.append(Labelled(f"format: {kind}", text.format(v=value), value))
    mws = "amzn" + ".mws." + uuid(source)
    discord = "MT" + source.of(MIXED, 24) + "." + source.of(URL_SAFE, 6) + "." + source.of(URL_SAFE, 38)
    tines = f"https://acme-7.tines.com/webhook/{source.of(HEX, 32)}/{source.of(HEX, 32)}"
    one = "A3-" + "-".join(source.of(UPPER_DIGITS, size) for size in (6, 6, 5, 5, 5, 5))
    glued = "gh" + "p_" + source.of(MIXED, 36)
    stripe = "sk" + "_live_" + source.of(MIXED, 24)
    for kind, text, value in (
        ("mws", f"id {mws}\n", mws),
        ("discord bot token", f"login({discord!r})\n", discord),
        ("tines", f"POST {tines}\n", tines[-32:]),
        ("1password secret key", f"emergency kit {one}\n", one),
        ("glued to a letter", f"tok{glued}\n", glued),
        ("glued after an escape", f'{{"a":"x\\n{stripe}"}}\n', stripe),
        ("plaid", f"v: access-{'production'}-{(plaid := uuid(source))}\n", plaid),
    ):
        labelled.append(Labelled(f"format: {kind}", text, value))
    return labelled


def encoded_secrets(source: SecretSource) -> list[Labelled]:
    """Whole secrets in base64 of either alphabet, with and without padding, and with every byte percent-encoded."""
    password, labelled = service_key(source), []
    for kind, secret in (
        ("github", "gh" + "p_" + source.of(MIXED, 36)),
        ("gitlab", "gl" + "pat-" + source.of(URL_SAFE, 20)),
        ("stripe", "sk" + "_live_" + source.of(MIXED, 24)),
        ("aws", "AK" + "IA" + source.of(string.ascii_uppercase + "234567", 16) + ":" + with_digit(source, BASE64, 40)),
        ("postgres", f"postgres://app:{password}@db.internal/shop"),
        ("redis", f"redis://:{password}@cache:6379/0"),
    ):
        standard, url_safe = (
            encode(secret.encode()).decode() for encode in (base64.b64encode, base64.urlsafe_b64encode)
        )
        percent = "".join(f"%{byte:02X}" for byte in secret.encode())
        labelled += [
            Labelled(f"encoded: {kind}, base64", f"config: {standard}\n", standard),
            Labelled(f"encoded: {kind}, url-safe", f"v={url_safe.rstrip('=')}\n", url_safe.rstrip("=")),
            Labelled(f"encoded: {kind}, percent", f"GET /a?x={percent}&y=1\n", percent),
        ]
    return labelled


# Forms in which a secret is not assigned: commands, sentences, tables, statements, headers.
UNASSIGNED = (
    "setx DEPLOY_CODE {v}",
    'setx DEPLOY_CODE "{v}" /M',
    "Use the password {v} to log in.",
    "Mit dem Passwort {v} kannst du dich anmelden.",
    "Utilisez le mot de passe {v} pour vous connecter.",
    "Usa la contraseña {v} para iniciar sesión.",
    "login: ann / {v}",
    "credentials: admin@example.com / {v}",
    "htpasswd -b /etc/nginx/.htpasswd ann {v}",
    "htpasswd -nbB ann '{v}'",
    'sudo -S <<< "{v}" apt update',
    '["mysql", "-u", "root", "-p{v}", "shop"]',
    "| user | password |\n|---|---|\n| ann | {v} |",
    "| Host | User | Password | Port |\n| --- | --- | --- | --- |\n| db1 | app | {v} | 5432 |",
    "| password | `{v}` |",
    "INSERT INTO users (name, password) VALUES ('ann', '{v}');",
    "insert into accounts (id, email, passwd, active) values (1, 'a@b.c', '{v}', true);",
    "#HttpOnly_.example.com\tTRUE\t/\tTRUE\t0\tsid\t{v}",
    'curl -u ":{v}" https://api.internal/v1',
    "curl --user k:'{v}' https://api.internal/v1",
    "Authorization: Api-Token {v}",
    "access_token=123456789012345|{v}",
    "service token - '{v}'",
)


def unassigned(source: SecretSource) -> list[Labelled]:
    labelled = []
    for syntax in UNASSIGNED:
        value = with_digit(source, MIXED, 27) if "token" in syntax.lower() else plain_password(source)
        labelled.append(Labelled(f"unassigned: {syntax}", syntax.format(v=value) + "\n", value))
    response = source.of(HEX, 32)
    encoded = base64.b64encode(plain_password(source).encode()).decode()
    for kind, text, value in (
        ("digest", f'Authorization: Digest username="ann", realm="r", uri="/", response="{response}"\n', response),
        ("secret without its kind", f"$ kubectl get secret app -o yaml\ndata:\n  main: {encoded}\n", encoded),
    ):
        labelled.append(Labelled(f"unassigned: {kind}", text, value))
    return labelled


FAMILIES: Sequence[Callable[[SecretSource], list[Labelled]]] = (
    named,
    second_copies,
    aws_pairs,
    private_keys,
    files_and_commands,
    formats,
    encoded_secrets,
    unassigned,
)


def everyday_secrets(seed: int) -> list[Labelled]:
    """Every form once, each with another value. The family is the part of the kind before the colon."""
    source = SecretSource(seed)
    return [labelled for family in FAMILIES for labelled in family(source)]
