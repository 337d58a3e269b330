"""A generated, labelled set: files, logs and tool outputs with one secret each, and others without a secret.

Everything is drawn from a seed when it is needed, so that no secret is in the repository. The texts were written after
what agents read, not after the rules; some contain secrets that only a human reader would recognise.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from typing import NamedTuple

LETTERS = string.ascii_letters
MIXED = LETTERS + string.digits
HEX = "0123456789abcdef"
WORDS = (
    "river",
    "stone",
    "amber",
    "window",
    "garden",
    "copper",
    "silent",
    "harbor",
    "meadow",
    "winter",
    "lantern",
    "orchard",
    "pepper",
    "marble",
    "thunder",
    "velvet",
    "walnut",
    "breeze",
    "canyon",
    "dragon",
    "ember",
    "forest",
    "glacier",
    "hollow",
    "island",
    "jungle",
    "kettle",
    "lemon",
    "mirror",
    "needle",
)


class Labelled(NamedTuple):
    kind: str
    text: str
    # An empty string means that the text has no secret.
    secret: str


class SecretSource:
    """Random pieces of texts from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def of(self, alphabet: str, length: int) -> str:
        return "".join(self.random.choice(alphabet) for _ in range(length))

    def word(self) -> str:
        return self.random.choice(WORDS)

    def password(self) -> str:
        """A password as people choose it or generators make it."""
        number = self.random.randrange(10, 9999)
        return self.random.choice(
            (
                f"{self.word().title()}{self.word().title()}{number}!",
                f"{self.word()}-{self.word()}-{self.word()}-{number}",
                self.of(MIXED + "!#$%*+-.^_~", 15) + "7q",
                self.of(MIXED, 20),
                f"{self.of(LETTERS, 4)}@{self.of(string.digits, 4)}{self.of(LETTERS, 3)}",
                f"{self.word()}{number}",
            )
        )

    def key(self) -> str:
        """A key as services issue it."""
        alphabet, length = self.random.choice(((MIXED, 32), (HEX, 32), (MIXED + "-_", 43), (HEX, 64), (MIXED, 40)))
        return self.of(alphabet, length - 2) + "4f"

    def as_aws(self, key: str) -> str:
        """The key in the alphabet and the length of an AWS secret, with its beginning unchanged."""
        return (key.replace("-", "+").replace("_", "/") + self.of(MIXED, 8))[:40]

    def prefixed_key(self) -> str:
        prefix, alphabet, length = self.random.choice(
            (
                ("gh" + "p_", MIXED, 36),
                ("gl" + "pat-", MIXED + "-_", 20),
                ("sk" + "_live_", MIXED, 24),
                ("AK" + "IA", string.ascii_uppercase + "234567", 16),
                ("AI" + "za", MIXED + "-_", 35),
                ("xo" + "xb-", string.digits + "-" + MIXED, 50),
                ("sk-" + "ant-api03-", MIXED + "-_", 95),
                ("np" + "m_", MIXED, 36),
                ("hv" + "s.", MIXED, 90),
                ("dop" + "_v1_", HEX, 64),
                ("ct" + "x_", MIXED + "-_", 43),
            )
        )
        return prefix + self.of(alphabet, length)

    def name(self) -> str:
        return self.random.choice(
            ("DB", "SMTP", "Admin", "redis", "POSTGRES", "app", "Service", "ldap", "root", "jenkins")
        )


Template = Callable[[SecretSource, str], str]

# Passwords in files, commands and logs.
PASSWORDS: dict[str, Template] = {
    "env file": lambda s, v: f"# local\nDEBUG=1\n{s.name().upper()}_PASSWORD={v}\nPORT=8080\n",
    "env file, quoted": lambda s, v: f"export {s.name().upper()}_PASS='{v}'\n",
    "docker compose": lambda s, v: (
        f"services:\n  db:\n    environment:\n      - MYSQL_ROOT_PASSWORD={v}\n      - TZ=UTC\n"
    ),
    "compose map": lambda s, v: f"    environment:\n      POSTGRES_USER: app\n      POSTGRES_PASSWORD: {v}\n",
    "java properties": lambda s, v: f"spring.datasource.username=app\nspring.datasource.password={v}\n",
    "ini": lambda s, v: f"[{s.name()}]\nuser = app\npasswd = {v}\nhost = localhost\n",
    "toml": lambda s, v: f'[database]\nuser = "app"\npassword = "{v}"\n',
    "json": lambda s, v: json.dumps({"host": "db1", "userPassword": v, "port": 5432}, indent=2),
    "json in json": lambda s, v: json.dumps({"type": "tool_result", "content": json.dumps({"db_password": v, "n": 1})}),
    "json twice in json": lambda s, v: json.dumps({"m": json.dumps({"c": json.dumps({"password": v, "n": 1})})}),
    "python": lambda s, v: f'engine = connect(host="db", user="{s.word()}", passwd="{v}")\n',
    "python dict": lambda s, v: f"cfg = {{'login': '{s.word()}', 'pwd': '{v}', 'retries': 3}}\n",
    "python setitem": lambda s, v: f'os.environ["{s.name().upper()}_PASSWORD"] = "{v}"\n',
    "python default": lambda s, v: f'pw = os.getenv("DB_PASSWORD", "{v}")\n',
    "python annotated": lambda s, v: f'class Settings:\n    db_password: str = "{v}"\n',
    "javascript": lambda s, v: f"const db = mysql.createPool({{ host: 'x', user: 'app', password: '{v}' }});\n",
    "typescript": lambda s, v: f"  private readonly adminPassword: string = '{v}';\n",
    "go": lambda s, v: f'\tcfg := Config{{User: "app", Password: "{v}", TLS: true}}\n',
    "rust": lambda s, v: f'    let password: &str = "{v}";\n',
    "java": lambda s, v: f'    props.setProperty("javax.net.ssl.keyStorePassword", "{v}");\n',
    "java call": lambda s, v: f'    ds.setPassword("{v}");\n',
    "php": lambda s, v: f"define( 'DB_PASSWORD', '{v}' );\n",
    "php array": lambda s, v: f"    'password' => '{v}',\n",
    "ruby": lambda s, v: f'  config.password = "{v}"\n',
    "c define": lambda s, v: f'#define WIFI_PASSWORD "{v}"\n',
    "terraform": lambda s, v: (
        f'resource "aws_db_instance" "m" {{\n  username        = "app"\n  master_password = "{v}"\n}}\n'
    ),
    "xml": lambda s, v: f"<server>\n  <username>ci</username>\n  <password>{v}</password>\n</server>\n",
    "xml attribute": lambda s, v: f'<Resource name="jdbc/x" username="app" password="{v}" maxTotal="20"/>\n',
    "net config": lambda s, v: f'<add key="SmtpPassword" value="{v}" />\n',
    "net connection": lambda s, v: f'"Default": "Server=db;Database=x;User Id=sa;Password={v};Encrypt=True"\n',
    "jdbc": lambda s, v: f"jdbc:mysql://db:3306/x?user=app&password={v}&useSSL=true\n",
    "address": lambda s, v: f"SQLALCHEMY_URI = 'mysql+pymysql://app:{v}@db.local/x'\n",
    "mongo address": lambda s, v: f"connecting to mongodb+srv://svc:{v}@c0.abc.mongodb.net/?retryWrites=true\n",
    "git diff": lambda s, v: f"@@ -1,2 +1,2 @@\n-  password: \n+  password: {v}\n   port: 1\n",
    "kubernetes": lambda s, v: json.dumps({"env": [{"name": "DB_PASSWORD", "value": v}]}, indent=2),
    "kubernetes secret": lambda s, v: f"kind: Secret\ndata:\n  db-password: {v}\n",
    "ansible": lambda s, v: f"ansible_become_pass: {v}\nansible_user: ops\n",
    "curl": lambda s, v: f"$ curl -sS -X PUT --user ci:{v} https://nexus.local/repo/a.jar\n",
    "mysql": lambda s, v: f"$ mysqldump -h db -u root -p{v} shop > shop.sql\n",
    "pgpassword": lambda s, v: f"$ PGPASSWORD={v} psql -h db -U app -c 'select 1'\n",
    "docker login": lambda s, v: f"$ docker login -u bot -p {v} registry.local\n",
    "flag": lambda s, v: f"$ ./migrate --db-password={v} --dry-run\n",
    "argv list": lambda s, v: f'subprocess.run(["tool", "--password", "{v}"])\n',
    "sshpass": lambda s, v: f"$ sshpass -p '{v}' ssh root@10.0.0.4 uptime\n",
    "sql": lambda s, v: f"ALTER USER app WITH PASSWORD '{v}';\n",
    "powershell": lambda s, v: f'$cred = ConvertTo-SecureString "{v}" -AsPlainText -Force\n',
    "form body": lambda s, v: f"POST /login HTTP/1.1\nContent-Length: 40\n\nusername=ann&password={v}&remember=1\n",
    "log line": lambda s, v: f"10:02:11 DEBUG auth attempt user=ann password={v} result=ok\n",
    "python repr": lambda s, v: f"Settings(host='db', password='{v}', port=5432)\n",
    "prose": lambda s, v: f"The new password for the {s.word()} account is {v}, please change it.\n",
    "prose, colon": lambda s, v: f"Login: {s.word()}\nPassword: {v}\n",
    "markdown": lambda s, v: f"- **Password:** `{v}`\n- **Port:** 22\n",
    "netrc": lambda s, v: f"machine git.local\n  login ann\n  password {v}\n",
    "csv": lambda s, v: f"name,login,password\nvpn,ann,{v}\n",
    "table": lambda s, v: f"Key         Value\n---         -----\npassword    {v}\nusername    ann\n",
    "expect script": lambda s, v: f'expect "Password:"\nsend "{v}\\r"\n',
    "triple quotes": lambda s, v: f'{s.name().lower()}_password = """{v}"""\n',
    "triple single quotes": lambda s, v: f"PASSWORD = '''{v}'''\n",
    "yaml block": lambda s, v: f"db:\n  password: |\n    {v}\n  port: 5432\n",
    "yaml folded": lambda s, v: f"password: >-\n  {v}\nuser: app\n",
    "next line": lambda s, v: f"password:\n  {v}\nuser: app\n",
    "pass": lambda s, v: f"Host: 10.0.0.4\nUser: {s.word()}\nPass: {v}\n",
    "spanish": lambda s, v: f"Usuario: {s.word()}\nContraseña: {v}\n",
    "french": lambda s, v: f"Identifiant : {s.word()}\nMot de passe : {v}\n",
    "russian": lambda s, v: f"Логин: {s.word()}\nПароль: {v}\n",
    "chinese": lambda s, v: f"用户名：{s.word()}\n密码：{v}\n",
    "japanese": lambda s, v: f"ID: {s.word()}\nパスワード: {v}\n",
    "unescaped address": lambda s, v: f"DATABASE=postgres://u:{v}@/{s.word()}@h.local/db\n",
    "oracle address": lambda s, v: f"url=jdbc:oracle:thin:scott/{v}@h.local:1521/x\n",
    "wireless": lambda s, v: f'network={{\n    ssid="{s.word()}"\n    psk="{v}"\n}}\n',
    "ssh-keygen": lambda s, v: f'$ ssh-keygen -t ed25519 -N "{v}" -f ~/.ssh/id_x\n',
    "zip": lambda s, v: f"$ zip -r -P {v} out.zip docs/\n",
    "positional": lambda s, v: f"$ ./login.sh ann {v}\n",
}

# How keys and tokens without a telling form stand there.
KEYS: dict[str, Template] = {
    "env file, key": lambda s, v: f"{s.name().upper()}_API_KEY={v}\nREGION=eu\n",
    "yaml, token": lambda s, v: f"integrations:\n  {s.word()}:\n    token: {v}\n    enabled: true\n",
    "json, secret": lambda s, v: json.dumps({"client_id": s.word(), "client_secret": v}),
    "camel case": lambda s, v: f"new Client({{ apiKey: '{v}', region: 'eu' }})\n",
    "header": lambda s, v: f"> GET /v1/me HTTP/2\n> x-api-key: {v}\n> accept: */*\n",
    "bearer": lambda s, v: f"curl -H 'Authorization: Bearer {v}' https://api.local/v1\n",
    "header dict": lambda s, v: f'headers = {{"Authorization": "token {v}", "Accept": "*/*"}}\n',
    "private header": lambda s, v: f'requests.get(u, headers={{"PRIVATE-TOKEN": "{v}"}})\n',
    "query": lambda s, v: f"GET https://maps.local/geo?q=x&key={v} 200 31ms\n",
    "token as user": lambda s, v: f"git clone https://{v}@git.local/team/app.git\n",
    "oauth user": lambda s, v: f"origin\thttps://oauth2:{v}@gitlab.local/team/app.git (fetch)\n",
    "cookie": lambda s, v: f"cookie: theme=dark; session_id={v}; lang=en\n",
    "django": lambda s, v: f"SECRET_KEY = '{v}'\n",
    "rails": lambda s, v: f"production:\n  secret_key_base: {v}\n",
    "terraform variable": lambda s, v: f'variable "datadog_key" {{\n  default = "{v}"\n}}\n',
    "actions": lambda s, v: f"      env:\n        NPM_TOKEN: {v}\n",
    "sts answer": lambda s, v: json.dumps({"Credentials": {"SecretAccessKey": s.as_aws(v)}}, indent=4),
    "aws configure": lambda s, v: f"AWS Secret Access Key [None]: {s.as_aws(v)}\nDefault region name [None]: eu\n",
    "key in prose": lambda s, v: f"I rotated it; the api key is now {v} (staging).\n",
    "set command": lambda s, v: f"$ heroku config:set STRIPE_SECRET={v} -a shop\n",
    "gh secret": lambda s, v: f"$ gh secret set DEPLOY_TOKEN --body {v}\n",
    "xml token": lambda s, v: f"<authToken>{v}</authToken>\n",
    "c sharp": lambda s, v: f'    public const string ApiSecret = "{v}";\n',
    "go const": lambda s, v: f'const hmacSecret = "{v}"\n',
    "escaped token": lambda s, v: json.dumps(json.dumps({"access_token": v, "expires_in": 3600})),
    "webhook": lambda s, v: f"https://hooks.slack.com/services/T02ABCDEF/B03ABCDEF/{v}\n",
    "presigned": lambda s, v: f"https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={v}{v}\n",
    "next line, key": lambda s, v: f"[default]\naws_secret_access_key =\n  {s.as_aws(v)}\n",
    "folded header": lambda s, v: f"GET / HTTP/1.1\nAuthorization: Bearer\n {v}\n",
    "triple quotes, key": lambda s, v: f'api_key = """{v}"""\n',
    "bare output": lambda s, v: f"$ openssl rand -hex 32\n{v}\n",
}

# Where keys of a telling form stand with no name beside them.
ANYWHERE: dict[str, Template] = {
    "in a sentence": lambda s, v: f"I used {v} for the demo.\n",
    "in a list": lambda s, v: f"keys:\n  - {v}\n  - other\n",
    "in an error": lambda s, v: f"401: invalid credentials ({v}) for {s.word()}\n",
    "in a diff": lambda s, v: f"-old\n+{v}\n",
    "in a path": lambda s, v: f"GET /v1/keys/{v}/rotate 404\n",
    "in minified code": lambda s, v: f'var a="{v}",b=1;function c(){{return a}}\n',
    "in a stack trace": lambda s, v: f'  File "x.py", line 3, in call\n    return get(u, "{v}")\n',
    "in a csv": lambda s, v: f"1,{s.word()},{v},2026-01-01\n",
    "behind a word": lambda s, v: f"id={s.word()}:{v};\n",
    "in html": lambda s, v: f"<code>{v}</code>\n",
}


# How a token of a telling form looks when what carried it changed it.
CHANGED: dict[str, Template] = {
    "escaped underscore": lambda s, v: '{"note": "' + v.replace("_", "\\u005f") + '"}\n',
    "percent": lambda s, v: f"GET /login?state=x,{v.replace('_', '%5F')} 302\n",
    "wrapped": lambda s, v: f"Your token:\n{v[:20]}\n{v[20:]}\n",
    "coloured": lambda s, v: f"match: {v[:12]}\x1b[31m{v[12:]}\x1b[0m\n",
}


def private_key(s: SecretSource, kind: str) -> Labelled:
    lines = [s.of(MIXED + "+/", 64) for _ in range(6)]
    label, dashes = "PRIVATE " + "KEY", "-" * 5
    pem = "\n".join([f"{dashes}BEGIN {label}{dashes}", *lines, f"{dashes}END {label}{dashes}"])
    text = {
        "plain": pem,
        "numbered": "\n".join(f"{n:6}\t{line}" for n, line in enumerate(pem.split("\n"), 1)),
        "diff": "\n".join("-" + line for line in pem.split("\n")),
        "json": json.dumps({"private_key": pem}),
        "cut": pem[:300],
        "tail": pem[100:],
        "indented": "\n".join("    " + line for line in pem.split("\n")),
        "base64": f"kubeconfig client-key-data: {base64.b64encode(pem.encode()).decode()}",
    }[kind]
    secret = base64.b64encode(pem.encode()).decode()[40:90] if kind == "base64" else lines[3][:30]
    return Labelled(f"private key, {kind}", text, secret)


def positives(seed: int) -> list[Labelled]:
    """Every template once, each with a secret of its own."""
    s = SecretSource(seed)
    labelled = []
    for templates, draw in ((PASSWORDS, s.password), (KEYS, s.key), (ANYWHERE, s.prefixed_key)):
        for kind, template in templates.items():
            value = draw()
            labelled.append(Labelled(kind, template(s, value), value))
    for kind, template in CHANGED.items():
        value = "gh" + "p_" + s.of(MIXED, 36)
        labelled.append(Labelled(kind, template(s, value), value[20:]))
    for kind, name in (("pin", "pin: "), ("one-time code", "otp=")):
        value = s.of("123456789", 5) + "0"
        labelled.append(Labelled(kind, f"user={s.word()} {name}{value}\n", value))
    kinds = ("plain", "numbered", "diff", "json", "cut", "tail", "indented", "base64")
    return labelled + [private_key(s, kind) for kind in kinds]


CODE = """
def login(user: str, password: str, token: str | None = None) -> Session:
    \"\"\"Log in with a password or a token; the token wins.\"\"\"
    password = os.environ["APP_PASSWORD"]
    secret = settings.secret_key or get_secret("app/secret")
    api_key = config.get("api_key")
    if not password or password == "":
        raise ValueError("password is required")
    token = generate_token(user, secret=secret)
    headers = {"Authorization": f"Bearer {token}", "X-Api-Key": api_key}
    return Session(user=user, token=token, max_tokens=4096, secret_name="app-secret", key=lambda x: x.key)
"""
TYPESCRIPT = """
export interface Credentials { username: string; password: string; token?: string; apiKey: string | null }
const token = await getToken({ clientSecret: process.env.CLIENT_SECRET, password: form.password.value });
const isPasswordValid = password.length >= 8 && password !== confirmPassword;
<input type="password" name="password" placeholder="Password" autocomplete="current-password" />
"""
COMPOSE = """
    environment:
      POSTGRES_PASSWORD: ${POSTGRES_PASSWORD}
      API_KEY: {{ vault_api_key }}
      SECRET_KEY_FILE: /run/secrets/key
      TOKEN: <your-token>
      AUTH: $AUTH
"""
README = """
Set `API_KEY=your-api-key-here` and `PASSWORD=changeme`. The token: a string. Run `login --password <password>`.
Passwords must have at least 12 characters; the secret is to rotate them. Token count: 128000. `sk-xxxxxxxxxxxxxxxxxxx`.
See https://docs.example.com/auth/tokens?page=2#keys or git@github.com:team/app.git. Basic authentication is deprecated.
"""
SCHEMA = """
CREATE TABLE users (id bigint primary key, password varchar(255) not null, token text, api_key uuid, salt bytea);
{"type": "object", "properties": {"password": {"type": "string"}, "token": {"type": "string", "minLength": 8}}}
"""


def negatives(seed: int) -> list[Labelled]:
    """Texts that look a little like secrets and contain none."""
    s = SecretSource(seed)
    digest, commit = s.of(HEX, 64), s.of(HEX, 40)
    uuid = "-".join(s.of(HEX, n) for n in (8, 4, 4, 4, 12))
    blob = base64.b64encode(s.random.randbytes(600)).decode()
    texts = {
        "python": CODE,
        "typescript": TYPESCRIPT,
        "compose": COMPOSE,
        "readme": README,
        "schema": SCHEMA,
        "git log": f"commit {commit}\nAuthor: Ann <ann@example.com>\n\n    Fix token refresh in {s.word()}\n",
        "git diff": f"index {commit[:8]}..{digest[:8]} 100644\n-token = None\n+token = load_token(path)\n",
        "npm lock": json.dumps(
            {"resolved": "https://packages.example/a/-/a-1.0.tgz", "integrity": f"sha512-{blob[:86]}=="}
        ),
        "pip lock": f"idna==3.7 \\\n    --hash=sha256:{digest} \\\n    --hash=sha256:{s.of(HEX, 64)}\n",
        "cargo lock": f'[[package]]\nname = "{s.word()}"\nversion = "1.0.2"\nchecksum = "{digest}"\n',
        "go sum": f"golang.org/x/net v0.1.0 h1:{blob[:43]}=\n",
        "docker": f"sha256:{digest}: Pulling from library/redis\nDigest: sha256:{s.of(HEX, 64)}\n",
        "uuid log": f"2026-01-02 INFO request {uuid} user {s.word()} took 31 ms trace={s.of(HEX, 32)}\n",
        "image": f'<img src="data:image/png;base64,{blob}" alt="{s.word()}"/>',
        "wheel": f"contextfold/a.py,sha256={blob[:43]},{s.random.randrange(9999)}\n",
        "ls": f"-rw-r--r-- 1 root root 4096 Jan  2 10:00 /etc/ssl/private/{s.word()}.pem\n/home/a/.ssh/id_rsa.pub\n",
        "public key": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{s.of(MIXED, 43)} ann@laptop\n",
        "test output": f"tests/test_auth.py::test_token_{s.word()} PASSED [ 12%]\n12 passed, 0 failed in 1.02s\n",
        "types": "token: Optional[str] = None\npassword: SecretStr\nkeys: list[bytes]\nsecret: bytes | None\n",
        "placeholders": "TOKEN=xxxxxxxxxxxxxxxx\nPASSWORD=********\nSECRET=<redacted>\npassword: [REDACTED]\n"
        "API_KEY=${{ secrets.KEY }}\n",
        "minified": f"!function(e,t){{var n=e.token||t.key,r=n?n.split(':'):[];"
        f"return{{key:r[0],auth:!0,password:t.{s.word()}}}}}(a,b);",
        "url": f"GET https://api.local:8443/v1/{s.word()}/{uuid}?page=2&sort=key&filter={s.word()} 200\n",
        "prose": f"The {s.word()} key was lost. A password reset was sent to {s.word()}@example.com. "
        "The token expired yesterday.\n",
        "css": f".{s.word()}-token:hover {{ color: #{s.of(HEX, 6)}; }} .key {{ width: 12px }}\n",
        "metrics": "tokens_used=1234 max_tokens=200000 input_tokens: 31000 key_count=12 auth=0 pass=12 fail=0\n",
        "makefile": "PASSWORD ?= $(shell pass show db)\nTOKEN := $(TOKEN_FILE)\n.PHONY: test\n",
        "shell": 'read -s -p "Password: " password\nexport TOKEN="$(cat /run/token)"\ncurl -u "$USER:$PASS" "$URL"\n',
        "go tests": f"--- PASS: Test{s.word().title()}2Base64 (0.01s)\nPASS\nok  \tapp/{s.word()}\t0.4s\n",
        "python blocks": f"if not token:\n    token = load9()\nfor part in secret:\n    count9+=1\n"
        f"if password:\n    {s.word()}()\n",
        "yaml schema": f"password:\n  type: string\n  minLength: 12\ntoken:\n  secretName: {s.word()}-tls\n",
        "foreign prose": "密码：请输入密码\ncontraseña: obligatoria\nMot de passe : requis\nпароль: нужен\n",
        "pins": f"GPIO pin: {s.random.randrange(40)}\nstatus code: 404404\notp=$OTP\npsk: str | None = None\n",
        "scoped package": f"GET http://localhost:4873/@{s.word()}/core 200\npostgres://localhost:5432/db?mail=a@b.example\n",
        "context names": f"ctx_{s.word()}_of_the_current_session_in_the_running_server_{s.word()}\n",
        "archives": f"$ zip -r out.zip {s.word()}\n$ ssh-keygen -t ed25519 -f {s.word()}\n",
        "version": f"{s.word()}-2.10.3+build.{s.of(HEX, 7)} cp311-manylinux_2_17_x86_64.whl\n",
    }
    return [Labelled(kind, text, "") for kind, text in texts.items()]
