"""The held-out set of everyday secrets: other names, syntaxes, formats and values than the development set.

It was written before the rules were tuned. Do not tune the rules on it: its figure says how well they generalise.
"""

from __future__ import annotations

import base64
import json
import string
import urllib.parse
from collections.abc import Callable, Sequence

from bench.everyday_secrets import BASE64, LOWER_DIGITS, UPPER_DIGITS, URL_SAFE, pem, with_digit
from bench.labelled_secrets import HEX, MIXED, Labelled, SecretSource


def passphrase(source: SecretSource) -> str:
    return source.random.choice(
        (
            f"{source.word()}_{source.word()}@{source.random.randrange(1900, 2100)}",
            f"{source.of(string.ascii_letters, 6)}#{source.of(string.digits, 3)}{source.of(string.ascii_letters, 5)}",
            f"{source.word().title()}&{source.word().title()}{source.random.randrange(10, 99)}?",
            f"x{source.of('<>{}()[]$|^', 2)}{source.of(MIXED, 4)}{source.of('<>{}()[]$|^', 2)}{source.of(MIXED, 7)}8k",
            with_digit(source, MIXED, 10),
        )
    )


def line_password(source: SecretSource) -> str:
    """A password that can be an unquoted value in every syntax."""
    return source.random.choice(
        (
            f"{source.word()}_{source.word()}@{source.random.randrange(1900, 2100)}",
            f"{source.of(string.ascii_letters, 6)}#{source.of(string.digits, 3)}{source.of(string.ascii_letters, 5)}",
            with_digit(source, MIXED, 10),
        )
    )


def credential(source: SecretSource) -> str:
    return with_digit(
        source, *source.random.choice(((LOWER_DIGITS, 24), (MIXED, 36), (HEX, 40), (URL_SAFE, 28), (BASE64, 44)))
    )


NAMES = (
    "AUTH_TOKEN_SLACK_BOT",
    "SMTP_PASS_2",
    "REDIS_PASSWORD_REPLICA",
    "userpw",
    "keypass",
    "ldappass",
    "vnc_passwd",
    "sudo_pass",
    "tls_psk",
    "SA_PASSWORD",
    "clientSecretDev",
    "refreshTokenOld",
    "JWT_SIGNING_SECRET_NEXT",
    "masterPasswordHint",
    "encryption_key_2024",
    "vaultTokenRoot",
    "mysqlpw",
    "trustStorePass",
    "account_key",
    "webhookSecretTest",
    "ACCESS_KEY_BACKUP",
    "db-password-ro",
    "app.security.token.main",
)
KEY_NAMES = ("sendgrid_key", "GEOCODER_KEY", "weatherKey", "rollbar_key", "session_key", "MIXPANEL_KEY")

QUOTED: dict[str, tuple[str, ...]] = {
    "assignment": (
        'private static final String {n} = "{v}";',
        'let {n}: String = "{v}"',
        'char {n}[] = "{v}";',
        'const char *{n} = "{v}";',
        'val {n}: String = "{v}"',
        'var {n} string = "{v}"',
        "{n} = b'{v}'",
        '{n} = r"{v}"',
        "{n} = u'{v}'",
        "my ${n} = '{v}';",
        "@{n} = '{v}'",
        "{{ '{n}' : '{v}' }}",
        '{n}: "{v}" # rotate',
        "{n} = `{v}`;",
    ),
    "operator": (
        '{n} <- "{v}"',
        "{n} <<- '{v}'",
        '(setq {n} "{v}")',
        ':{n} "{v}"',
        ":{n} => '{v}'",
        '{n} := []byte("{v}")',
        'if {n} == "{v}" {{',
        "if ({n} === '{v}') {{",
        "'{v}' !== {n}",
        'client.set_{n}("{v}")',
        ".{n}('{v}')",
        "local {n} = [[{v}]]",
        '{n} = String::from("{v}");',
        'NSString *{n} = @"{v}";',
        "{n} = N'{v}'",
        'set {n} "{v}"',
        '{n} = ("{v}")',
        '["{n}"] = "{v}"',
        "{n} ??= '{v}'",
        '{n}.equals("{v}")',
    ),
    "fallback": (
        "ENV.fetch('{n}', '{v}')",
        "ENV['{n}'] || '{v}'",
        "env('{n}', '{v}')",
        'System.getenv().getOrDefault("{n}", "{v}")',
        'viper.SetDefault("{n}", "{v}")',
        'parser.add_argument("--{n}", default="{v}")',
        'flag.String("{n}", "{v}", "usage")',
        "$_ENV['{n}'] ?? '{v}'",
        'std::env::var("{n}").unwrap_or("{v}".into())',
    ),
    "markup": (
        '<entry key="{n}">{v}</entry>',
        '<string name="{n}">{v}</string>',
        "<key>{n}</key>\n<string>{v}</string>",
        '<{n} value="{v}" />',
        '<param name="{n}">{v}</param>',
        '<input type="hidden" name="{n}" value="{v}">',
    ),
}
PLAIN = (
    "{n} {v}",
    "set {n}={v}",
    "setenv {n} {v}",
    "ENV {n} {v}",
    "{n}:={v}",
    "{n} => {v}",
    "-D{n}={v}",
    "{n}\t{v}",
    "{n}: !!str {v}",
    "; {n} = {v}",
    "--{n} {v}",
    "--{n}={v}",
    "/{n}:{v}",
    "{{{n}={v}, host=db}}",
    "{n}: {v},",
)


def named(source: SecretSource) -> list[Labelled]:
    labelled = []
    for family, syntaxes in QUOTED.items():
        for syntax in syntaxes:
            name = source.random.choice(NAMES)
            draw = line_password if family == "markup" else source.random.choice((passphrase, credential))
            value = draw(source)
            labelled.append(Labelled(f"{family}: {syntax}", syntax.format(n=name, v=value) + "\n", value))
    for name in NAMES:
        syntax, value = source.random.choice(QUOTED["assignment"]), passphrase(source)
        labelled.append(Labelled(f"name: {name}, quoted", syntax.format(n=name, v=value) + "\n", value))
        syntax, value = source.random.choice(("{n}={v}", "{n}: {v}", "{n} = {v}")), credential(source)
        labelled.append(Labelled(f"name: {name}, plain", f"# app\n{syntax.format(n=name, v=value)}\nport=1\n", value))
    for name in KEY_NAMES:
        syntax = source.random.choice(('{n} = "{v}"', "{n}: {v}", "{n}={v}", "{n}: '{v}',"))
        value = with_digit(source, *source.random.choice(((MIXED, 20), (MIXED, 22), (HEX, 20))))
        labelled.append(Labelled(f"name: {name}, 20 characters", syntax.format(n=name, v=value) + "\n", value))
    for syntax in PLAIN:
        name = source.random.choice(("db_password", "rootPassword", "ADMIN_PASSWORD", "ldap_passwd"))
        value = line_password(source)
        labelled.append(Labelled(f"plain: {syntax}", syntax.format(n=name, v=value) + "\n", value))
    return labelled


def second_copies(source: SecretSource) -> list[Labelled]:
    password, key = line_password(source), credential(source)
    texts = {
        "in an error": (password, f"password: {password}\n...\nFATAL: login failed for app ({password})\n"),
        "in a path": (key, f"api_token={key}\nGET /v2/{key}/items 200\n"),
        "in a list": (key, f'client_secret: "{key}"\nallowed:\n  - {key}\n'),
        "in a header": (key, f'{{"auth_token": "{key}"}}\n> cookie: theme=dark; z={key}\n'),
        "many": (password, f"PASSWORD={password}\n" + f"try {password}\n" * 5),
    }
    return [Labelled(f"copy: {kind}", text, value) for kind, (value, text) in texts.items()]


def aws_pairs(source: SecretSource) -> list[Labelled]:
    key, secret = "AS" + "IA" + source.of(string.ascii_uppercase + "234567", 16), with_digit(source, BASE64, 40)
    texts = {
        "tab": f"deploy\t{key}\t{secret}\n",
        "slash": f"{key} / {secret}\n",
        "json list": json.dumps([key, secret]) + "\n",
        "java": f'new BasicCredentials("{key}", "{secret}");\n',
        "next line": f"{key}\n{secret}\n",
        "yaml": f"id: {key}\nsecret: {secret}\n",
        "s3cfg": f"access_key = {key}\nsecret_key = {secret}\n",
        "short names": f"ak={key} sk={secret}\n",
        "pipe": f"| {key} | {secret} |\n",
    }
    return [Labelled(f"aws: {kind}", text, secret) for kind, text in texts.items()]


def private_keys(source: SecretSource) -> list[Labelled]:
    lines, secret = pem(source, source.random.choice(("", "EC", "OPENSSH")))
    encoded = base64.b64encode("\n".join(lines).encode()).decode()
    texts = {
        "quoted mail": "\n".join(f"> {line}" for line in lines),
        "table": "\n".join(f"| {line} |" for line in lines),
        "javascript strings": " +\n".join(f'  "{line}\\n"' for line in lines),
        "c strings": "\n".join(f'    "{line}\\n"' for line in lines),
        "cat -n": "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, 1)),
        "log lines": "\n".join(f"2026-02-03T04:05:06Z app[12]: {line}" for line in lines),
        "carriage returns": "\r\n".join(lines),
        "escaped twice": json.dumps(json.dumps({"k": "\n".join(lines)})),
        "one line": " ".join(lines),
        "html": "<br>\n".join(lines),
        "array": json.dumps(lines, indent=2),
        "rg context": "\n".join(f"a/key.pem-{number}-{line}" for number, line in enumerate(lines, 1)),
        "diff": "\n".join(f"+{line}" for line in lines),
        "coloured diff": "\n".join(f"\x1b[32m+{line}\x1b[m" for line in lines),
    }
    labelled = [Labelled(f"private key: {kind}", text, secret) for kind, text in texts.items()]
    wrapped = "\n".join(encoded[at : at + 64] for at in range(0, len(encoded), 64))
    labelled.append(Labelled("private key: base64 at 64", f"tls.key: |\n{wrapped}\n", encoded[64 * 4 : 64 * 5]))
    return labelled


def files_and_commands(source: SecretSource) -> list[Labelled]:
    password, other = line_password(source), credential(source)
    encoded = base64.b64encode(passphrase(source).encode() + b"12345").decode()
    texts = {
        "curl user on its line": (password, f"curl --request GET \\\n --user bob:{password} \\\n https://x.internal\n"),
        "wget": (password, f"wget --http-user=bob --http-password={password} https://x.internal/a\n"),
        "lftp": (password, f"lftp -u bob,{password} sftp://x.internal\n"),
        "smbclient": (password, f"smbclient //srv/share -U bob%{password}\n"),
        "mosquitto": (password, f"mosquitto_pub -h mq -u sensor -P {password} -t a -m b\n"),
        "libpq string": (password, f'psql "host=db user=app password={password} dbname=x"\n'),
        "rabbitmqctl": (password, f"rabbitmqctl add_user app {password}\n"),
        "chpasswd": (password, f'echo "bob:{password}" | chpasswd\n'),
        "openssl": (password, f"openssl pkcs12 -export -out a.p12 -passout pass:{password}\n"),
        "kubectl literal": (password, f"kubectl create secret generic app --from-literal=db={password}\n"),
        "vault put": (password, f"vault kv put secret/app password={password}\n"),
        "keytool": (password, f"keytool -genkey -alias a -storepass {password} -keystore k.jks\n"),
        "my.cnf": (password, f"[client]\nuser=app\npassword={password}\n"),
        "master password": (password, f"CHANGE MASTER TO MASTER_USER='r', MASTER_PASSWORD='{password}';\n"),
        "create role": (password, f"CREATE ROLE app LOGIN PASSWORD '{password}';\n"),
        "pgpass with an address": (password, f"10.0.0.7:5432:*:report:{password}\n"),
        "go dsn, unix": (password, f'dsn := "root:{password}@unix(/run/mysqld.sock)/app?parseTime=true"\n'),
        "python dsn": (password, f"dsn = 'app:{password}@db.internal:3306/shop'\n"),
        "kubernetes two entries": (
            encoded,
            f"kind: Secret\napiVersion: v1\ndata:\n  ca.crt: {base64.b64encode(b'abc12345xyz').decode()}\n"
            f"  connection: {encoded}\n",
        ),
        "kubernetes json": (
            encoded,
            json.dumps({"kind": "Secret", "apiVersion": "v1", "data": {"main": encoded}}, indent=2) + "\n",
        ),
        "base64 of json": (
            (hidden := base64.b64encode(json.dumps({"user": "a", "password": password}).encode()).decode()),
            f"payload {hidden}\n",
        ),
        "url encoded form": (
            urllib.parse.quote(other, safe=""),
            f"next={urllib.parse.quote(f'/cb?client_secret={other}', safe='')}\n",
        ),
        "basic login": (
            (login := base64.b64encode(f"bob:{password}".encode()).decode()),
            f"-H 'Authorization: Basic {login}'\n",
        ),
        "redis auth": (password, f"redis-cli -h cache -a {password} ping\n"),
        "net use": (password, f"net use Z: \\\\srv\\share {password} /user:bob\n"),
        "auth command": (password, f"AUTH {password}\n"),
        "rails credentials": (other, f"production:\n  secret_key_base: {other}\n"),
        "cisco": (password, f"username admin password 0 {password}\n"),
        "sip": (password, f"[100]\ntype=friend\nsecret={password}\nhost=dynamic\n"),
        "ansible": (password, f"ansible_ssh_pass={password}\n"),
        "maven": (password, f"<server><id>x</id><password>{password}</password></server>\n"),
    }
    return [Labelled(f"file: {kind}", text, value) for kind, (value, text) in texts.items()]


FORMATS: tuple[tuple[str, str, str, int], ...] = (
    ("shopify custom app", "shp" + "ca_", HEX, 32),
    ("scalingo", "tk-" + "us-", URL_SAFE, 48),
    ("frame.io", "fio" + "-u-", URL_SAFE, 64),
    ("xata", "xa" + "u_", MIXED, 40),
    ("runpod", "rp" + "a_", UPPER_DIGITS, 46),
    ("razorpay", "rzp" + "_live_", MIXED, 14),
    ("deno", "dd" + "p_", MIXED, 36),
    ("clickhouse", "4b" + "1d", MIXED, 38),
    ("adobe", "p8" + "e-", HEX, 32),
    ("polar", "polar" + "_pat_", MIXED, 43),
    ("aiven", "AV" + "NS_", URL_SAFE, 19),
    ("trello", "AT" + "TA", HEX, 72),
    ("sonar", "sq" + "u_", HEX, 40),
    ("jumpcloud", "jc" + "a_", MIXED, 36),
    ("elevenlabs", "s" + "k_", HEX, 48),
    ("mercury", "secret-" + "token:mercury_production_", MIXED, 40),
    ("confluent", "cfl" + "t", BASE64, 60),
    ("brave", "BS" + "A", URL_SAFE, 28),
    ("settlemint", "sm" + "_pat_", MIXED, 16),
    ("yandex", "AQ" + "VN", URL_SAFE, 36),
    ("zuplo", "zp" + "ka_", LOWER_DIGITS, 42),
    ("langfuse", "sk-" + "lf-", HEX, 36),
)


def formats(source: SecretSource) -> list[Labelled]:
    labelled = []
    for kind, prefix, alphabet, length in FORMATS:
        value = prefix + with_digit(source, alphabet, length)
        text = source.random.choice(("warn: {v}\n", "* `{v}`\n", "f('{v}')\n", "id:{v};\n", "{v},7\n", '["{v}"]\n'))
        labelled.append(Labelled(f"format: {kind}", text.format(v=value), value))
    maxmind = f"{source.of(MIXED, 6)}_{source.of(MIXED, 29)}" + "_m" + "mk"
    harness = "pa" + f"t.{source.of(MIXED, 22)}.{source.of(HEX, 24)}.{source.of(MIXED, 20)}"
    zoho = "10" + f"00.{source.of(HEX, 32)}.{source.of(HEX, 32)}"
    salesforce = "00D" + source.of(MIXED, 12) + "!AQ" + source.of(MIXED + "._", 93)
    pubnub = "sec" + "-c-" + source.of(MIXED, 48)
    zapier = f"hooks.zapier.com/hooks/catch/{source.of(string.digits, 7)}/{source.of(LOWER_DIGITS, 7)}"
    for kind, text, value in (
        ("maxmind", f"({maxmind})\n", maxmind),
        ("harness", f"use {harness}\n", harness),
        ("zoho", f"v={zoho}\n", zoho[-32:]),
        ("salesforce", f"sid {salesforce}\n", salesforce),
        ("pubnub", f"'{pubnub}'\n", pubnub),
        ("zapier", f"https://{zapier}/\n", zapier[-7:]),
        ("glued to a digit", "v2" + (g := "gl" + "pat-" + source.of(URL_SAFE, 20)) + "\n", g),
        ("glued to an underscore", "my_" + (g := "dop" + "_v1_" + source.of(HEX, 64)) + "\n", g),
    ):
        labelled.append(Labelled(f"format: {kind}", text, value))
    return labelled


FAMILIES: Sequence[Callable[[SecretSource], list[Labelled]]] = (
    named,
    second_copies,
    aws_pairs,
    private_keys,
    files_and_commands,
    formats,
)


def heldout_secrets(seed: int) -> list[Labelled]:
    """Every form once, each with another value. The family is the part of the kind before the colon."""
    source = SecretSource(seed)
    return [labelled for family in FAMILIES for labelled in family(source)]
