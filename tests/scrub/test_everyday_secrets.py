"""Secrets in common notations are redacted, and ordinary source code is not."""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections import Counter
from functools import cache

import pytest

from bench.everyday_secrets import everyday_secrets
from bench.heldout_secrets import heldout_secrets
from bench.labelled_secrets import Labelled
from bench.secrets import half_remains
from contextfold.scrub.scrubber import Scrubber, standard_scrubber
from tests.support.machine import times

SEEDS = range(100, 100 + times(2, 20))
DEVELOPMENT_RECALL, HELDOUT_RECALL = 0.96, 0.92
VALUE = "Xk9#" + "mQ2vLp7wZ4"
KEY = "q7ZpLk2VwRt9" + "Xc4Bn8Ms"
AWS_ID, AWS_SECRET = "AK" + "IA" + "QWERTYUIOP234567", "h8Kd/2mNq+" * 3 + "Zx5Vb7Lw1T"
BRACES = "w{{z}k)p${e]tur(nip[grows-_$#hereabout}}"


@cache
def scrubber() -> Scrubber:
    return standard_scrubber()


def recall(sets: list[Labelled]) -> tuple[float, Counter[str]]:
    missed = Counter(labelled.kind for labelled in sets if half_remains(scrubber(), labelled))
    return 1 - missed.total() / len(sets), missed


def test_recall_on_the_development_set_is_high() -> None:
    share, missed = recall([labelled for seed in SEEDS for labelled in everyday_secrets(seed)])
    assert share >= DEVELOPMENT_RECALL, missed


def test_recall_on_the_held_out_set_is_high() -> None:
    share, missed = recall([labelled for seed in SEEDS for labelled in heldout_secrets(seed)])
    assert share >= HELDOUT_RECALL, missed


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"API_KEY_OPENAI={KEY}", KEY),
        (f"TOKEN_GITHUB={KEY}", KEY),
        (f"NEXTAUTH_SECRET_V2={KEY}", KEY),
        (f"rootpw={VALUE}", VALUE),
        (f'token :::= "{KEY}"', KEY),
        (f'password += "{VALUE}"', VALUE),
        (f"getenv('API_TOKEN') ?: '{KEY}'", KEY),
        (f"const token = process.env.T || '{KEY}';", KEY),
        (f"{AWS_ID}:{AWS_SECRET}", AWS_SECRET),
        (f"DB_PASSWORD_PRIMARY={VALUE}", VALUE),
        (f"secret_id={KEY}", KEY),
        (f"bindpw {VALUE}", VALUE),
        (f"adminpass: '{VALUE}'", VALUE),
        (f"-storepass {VALUE}", VALUE),
        (f'wifi_psk = "{VALUE}"', VALUE),
        (f'maps_key = "{KEY}"', KEY),
        (f'password ?= "{VALUE}"', VALUE),
        (f"token ::= {KEY}", KEY),
        (f"$token .= '{KEY}';", KEY),
        (f'password -> "{VALUE}"', VALUE),
        (f'token = @"{KEY}";', KEY),
        (f'password "{VALUE}"', VALUE),
        (f"<Token>\n  {KEY}\n</Token>", KEY),
        (f'os.getenv("DB_PASSWORD", "{VALUE}")', VALUE),
        (f'os.environ.get("API_TOKEN") or "{KEY}"', KEY),
        (f"process.env.API_TOKEN || '{KEY}'", KEY),
        (f'password = x or "{VALUE}"', VALUE),
        (f'password: str = settings.get("p") or "{VALUE}"', VALUE),
        (f"token = os.environ['T'] if 'T' in os.environ else '{KEY}'", KEY),
        (f'$password = $p ?: "{VALUE}";', VALUE),
        (f'val apiKey = props["k"] ?: "{KEY}"', KEY),
        (f"{{ user, password: env.P ?? '{VALUE}' }}", VALUE),
        (f'const token = saved ? saved : "{KEY}";', KEY),
        (f'String secret = Optional.ofNullable(a).orElse("{KEY}");', KEY),
        (f'if ("{VALUE}" == password)', VALUE),
        (f"Access key ID,Secret access key\n{AWS_ID},{AWS_SECRET}\n", AWS_SECRET),
        (f'connect("{AWS_ID}", "{AWS_SECRET}")', AWS_SECRET),
        (f"curl -X POST \\\n  -u admin:{VALUE} \\\n  https://a.internal", VALUE),
        (f"curl -s -u \\\n  admin:{VALUE} \\\n  https://a.internal", VALUE),
        (f"curl --user \\\r\n\tadmin:{VALUE} https://a.internal", VALUE),
        (f"next=postgres%3A%2F%2Fapp%3A{KEY}%40db%2Fshop", KEY),
        (f"next=https%253A%252F%252Fapp%253A{KEY}%2540db%252Fshop", KEY),
        (f"db.internal:5432:shop:app:{VALUE}", VALUE),
        (f'sql.Open("mysql", "app:{VALUE}@tcp(db:3306)/shop")', VALUE),
        (f"kind: Secret\nmetadata:\n  name: a\ndata:\n  anything: {KEY}\n", KEY),
        (f"apiVersion: v1\ndata:\n  anything: {KEY}\nkind: Secret\n", KEY),
        (f'{{"kind": "Secret", "data": {{"first": "abcdef", "anything": "{KEY}"}}}}', KEY),
        (f"define('AUTH_KEY', '{KEY} {KEY} *')", f"{KEY} {KEY}"),
        (f"body=%7B%22password%22%3A%22{KEY}%22%7D", KEY),
        (f'password = "{BRACES}"', BRACES),
        (f"<secret>{{AQAAABAAA {KEY}}}</secret>", KEY),
        ("x" + "gh" + "p_" + KEY * 2, KEY),
        (f'curl -u "{KEY}:" https://a.internal', KEY),
        (f'curl --user "{{app}}":"{VALUE}" https://a.internal', VALUE),
        (f"http -a ann:{VALUE} a.internal", VALUE),
        (f"pw: {VALUE}", VALUE),
        (f"nmcli dev wifi connect home password {VALUE}", VALUE),
        (f"aws configure set aws_secret_access_key {AWS_SECRET}", AWS_SECRET),
        (f"fastcgi_param DB_PASSWORD {VALUE};", VALUE),
        (f"npm config set //registry/:_authToken {KEY}", KEY),
        (f"use token {KEY} for the API", KEY),
        (f"the key is {KEY}", KEY),
        (f"secret - `{KEY}`", KEY),
        (f"Token:\n{KEY}\n", KEY),
        (f"secret access key\n{AWS_SECRET}", AWS_SECRET),
        (f"api_key = <<EOF\n{KEY}\nEOF", KEY),
        (f'ACCOUNT_KEY\n    = "{KEY}";', KEY),
        (f'const key = process.env.API_KEY ||\n  "{KEY}"', KEY),
        (f'def get_token():\n    return "{KEY}"', KEY),
        (f'String getPassword() {{ return "{VALUE}"; }}', VALUE),
        (f"clean -StorageKey {KEY}", KEY),
        (f'cle_secrete = "{KEY}"', KEY),
        (f"Das Kennwort lautet {VALUE}", VALUE),
        (f"[sudo] password for ann: {VALUE}", VALUE),
        (f"enable secret 5 {VALUE}", VALUE),
        (f"tacacs-server key {VALUE}", VALUE),
        (f"passwd ann <<< '{VALUE}'", VALUE),
        (f"printf '{VALUE}' | passwd --stdin ann", VALUE),
        (f"echo {VALUE} | kinit ann", VALUE),
        (f"xfreerdp /u:ann /p:{VALUE} /v:h", VALUE),
        (f"schtasks /create /ru ann /rp {VALUE}", VALUE),
        (f"ipmitool -H h -U ann -P {VALUE} power on", VALUE),
        (f"winexe -U ann%{VALUE} //h cmd", VALUE),
        (f"snmpwalk -v3 -A {VALUE} h", VALUE),
        (f"radtest ann {VALUE} h 0 x", VALUE),
        (f"reg add HKLM /v DefaultPassword /t REG_SZ /d {VALUE}", VALUE),
        ('<add key="ClearTextPassword" value="OrchardGatePassword" />', "OrchardGatePassword"),
        (f'sonar.login = "{KEY * 2}"', KEY),
        (f"data:\n\textra: |\n\t  {KEY}\nkind: secret\n", KEY),
        (f"kind: Secret\ndata:\n  # in base64\n  extra: {KEY}\n", KEY),
        (f"password = {BRACES},", BRACES),
        (f"le mot de passe est {VALUE}", VALUE),
        (f"la contraseña es {VALUE}", VALUE),
        (f"la password è {VALUE}", VALUE),
        (f'The secret is "{VALUE}".', VALUE),
        (f"sudo -S <<EOF\n{VALUE}\nEOF", VALUE),
        (f"wrangler secret put NAME <<< {KEY}", KEY),
        (f'WiFi.begin("home", "{VALUE}");', VALUE),
        (f"wpa_passphrase home {VALUE}", VALUE),
        (f"cqlsh -u ann -p {VALUE}", VALUE),
        (f"etcdctl --user root:{VALUE} get a", VALUE),
        (f"| Host | Token |\n| --- | --- |\n| a.b | {KEY} |", KEY),
        (f"user,password\nann,{VALUE}", VALUE),
        (f"name;password\r\nann;{VALUE}\r\nbob;{VALUE[::-1]}", VALUE[::-1]),
        (f"vault login {KEY}", KEY),
        (f"login('ann', '{VALUE}')", VALUE),
        (f"jwt.sign(payload, '{KEY}')", KEY),
        (f'jwt.encode(payload, "{KEY}", algorithm="HS256")', KEY),
        (f"crypto.createHmac('sha256', '{KEY}')", KEY),
        (f"hmac.new(b'{KEY}', body, hashlib.sha256)", KEY),
        (f"API key - {KEY}", KEY),
        ("[user=ann password=hunter2]", "hunter2"),
        ("webhook_secret = /hooks/9f8b2c1d7e6a4f5b8c9d0e1f2a3b4c5d", "9f8b2c1d7e6a4f5b8c9d0e1f2a3b4c5d"),
    ],
)
def test_a_notation_that_was_once_missed_is_found(text: str, secret: str) -> None:
    assert not half_remains(scrubber(), Labelled("", f"{text}\n", secret))


@pytest.mark.parametrize("prefix", ["{n}:", "id_rsa:{n}:", "\x1b[32m{n}\x1b[0m:", "  - ", "> ", "+"])
def test_a_private_key_is_found_if_its_lines_have_a_prefix(prefix: str) -> None:
    body = [base64.b64encode(bytes((7 * row + 31 * column) % 251 for column in range(48))).decode() for row in range(6)]
    lines = ["-" * 5 + "BEGIN RSA PRIVATE" + " KEY" + "-" * 5, *body, "-" * 5 + "END RSA PRIVATE" + " KEY" + "-" * 5]
    text = "\n".join(prefix.replace("{n}", str(number)) + line for number, line in enumerate(lines, 1))
    scrubbed = scrubber().scrub(text).text
    assert not [line for line in body if line[:32] in scrubbed or line[32:] in scrubbed]


def test_a_private_key_in_wrapped_base64_is_found() -> None:
    pem = "-" * 5 + "BEGIN PRIVATE" + " KEY" + "-" * 5 + "\n" + (KEY * 3 + "\n") * 8
    encoded = base64.b64encode(pem.encode()).decode()
    text = "\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))
    assert encoded[200:240] not in scrubber().scrub(text).text


def test_base64_is_redacted_only_if_it_contains_a_secret() -> None:
    secret, plain = (
        base64.b64encode(text).decode() for text in (f"DB_PASSWORD={VALUE}".encode(), b"the key of the map is here")
    )
    assert scrubber().scrub(f"a {secret} b {plain} c").text == f"a [REDACTED:base64-text] b {plain} c"


WHOLE_SECRETS = (
    "gh" + "p_" + (KEY * 2)[:36],
    "github" + "_pat_" + (KEY * 5)[:82],
    "gl" + "pat-" + KEY,
    "sk" + "_live_" + KEY + "abc4",
    "sk" + "-ant-" + "api03-" + (KEY * 5)[:93] + "AA",
    "xo" + "xb-" + "123456789012-123456789013-" + KEY + "abc4",
    f"{AWS_ID}:{AWS_SECRET}",
    f"postgres://app:{KEY}@db.internal/shop",
    f"mysql://app:{KEY}@db.internal:3306/shop",
    f"mongodb+srv://app:{KEY}@a.mongodb.net",
    f"redis://:{KEY}@cache:6379/0",
    "ey" + "JhbGciOiJIUzI1NiJ9." + "ey" + f"JzdWIiOiJhbm4ifQ.{KEY * 2}abc",
    f"DB_PASSWORD={VALUE}",
)


@pytest.mark.parametrize("secret", WHOLE_SECRETS)
@pytest.mark.parametrize("text", ["{}", "config: {}", 'x = "{}"', "v={}", "echo {} | base64 -d"])
def test_a_secret_in_base64_is_found_in_either_alphabet_with_and_without_padding(text: str, secret: str) -> None:
    # The characters after the secret are encoded differently in the two alphabets.
    for value in (secret, f"{secret} ", f"{secret}  ~~~???>>>"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = encode(value.encode()).decode()
            for encoded_text in {encoded, encoded.rstrip("=")}:
                assert not half_remains(scrubber(), Labelled("", text.format(encoded_text), encoded_text))


@pytest.mark.parametrize("secret", WHOLE_SECRETS)
@pytest.mark.parametrize("code", ["%{:02X}", "%{:02x}"])
def test_a_secret_with_every_byte_percent_encoded_is_found(code: str, secret: str) -> None:
    encoded = "".join(map(code.format, secret.encode()))
    assert not half_remains(scrubber(), Labelled("", f"https://a.internal/?x={encoded}&y=1", encoded))


def test_other_percent_encoded_and_base64_texts_are_not_redacted() -> None:
    plain = "see https://a.internal:8080/docs for the keys of the map"
    encoded = "".join(f"%{byte:02X}" for byte in plain.encode())
    for text in (encoded, base64.b64encode(plain.encode()).decode(), "u=https%3A%2F%2Fa.internal%3A8080%2Fx%40y"):
        assert scrubber().scrub(text) == (text, 0, ())


@pytest.mark.parametrize("name", ["data", "stringData"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_each_value_of_a_kubernetes_secret_in_json_is_redacted_in_any_order(
    name: str, separators: tuple[str, str]
) -> None:
    nested = json.dumps({"kind": "Secret", "metadata": {"annotations": {}}})
    members: dict[str, object] = {
        "kind": "Secret",
        "metadata": {"name": "a", "annotations": {"last-applied": nested}},
        name: {"some": KEY, "other.txt": KEY[::-1]},
        "type": "Opaque",
    }
    other = {"kind": "ConfigMap", "data": {"a": "something-7"}}
    for order in itertools.permutations(members):
        text = json.dumps([other, {key: members[key] for key in order}], separators=separators)
        for encoded_text in (text, json.dumps({"output": text})):
            scrubbed = scrubber().scrub(encoded_text)
            assert scrubbed.redactions == 2
            assert KEY not in scrubbed.text
            assert KEY[::-1] not in scrubbed.text
            assert scrubber().scrub(scrubbed.text).text == scrubbed.text


def test_the_values_of_a_kubernetes_secret_are_redacted_and_its_names_are_not() -> None:
    text = f"kind: Secret\ndata:\n  first: {KEY}\n  second: {KEY[::-1]}\n---\nkind: ConfigMap\ndata:\n  a: something\n"
    redacted = re.sub(r"\[REDACTED:[a-z0-9-]+\]", "#", scrubber().scrub(text).text)
    assert redacted == "kind: Secret\ndata:\n  first: #\n  second: #\n---\nkind: ConfigMap\ndata:\n  a: something\n"


@pytest.mark.parametrize(
    "text",
    [
        "token, value = get_atom(value)",
        '"pass": "All links have a discernible text",',
        "describe('login', () => { it('pass: \"shows the form\"') })",
        "fields = ['username', 'password', 'email_address', 'first_name2']",
        'provided that such works are identified as "derived from the original"',
        "key = self._backend._lib.d2i_PUBKEY_bio(bio, self._backend._ffi.NULL)",
        "from hub import hf_transfer_enabled_for_this_download",
        "hf_hubDownloadFileFromTheRepositoryOfModels(path)",
        "password: {{ vault_db_password }}",
        "password = \"{{ lookup('env', 'PASSWORD') }}\"",
        "token_type: bearer",
        'token_type = "access_token_v2"',
        '# define OSSL_PKEY_PARAM_RSA_EXPONENT9 "rsa-exponent9"',
        "password = await read.password('Password:', creds.password)",
        'MovedAttribute("HTTPPasswordMgrWithDefaultRealm", "urllib2", "urllib.request"),',
        "progressToken: ProgressTokenSchema$1.optional(),",
        '.codicon-pass:before{content:"x"}',
        "password: 'Please enter the password of your account'",
        "#define GL_PASS_THROUGH_NV 0x86E6",
        "const key = `cache-${version}-${name}`",
        "{% if token %}{{ token }}{% endif %}",
        "Authorization: Bearer ${TOKEN}",
        "redact({ paths: ['*.password', '*.*.*.password', 'users[1].password', 'data[*].secret'] })",
        "this.token=null}async start(e){return e}",
        "const TOKEN_STRINGS = '[A-Za-z0-9._~+/-]+=*'",
        '{ label: "Access token", value: `${accessToken.slice(0, 24)}` }',
        "oauth_token_secret=secret%3Dpassword&oauth_token=lock%26key",
        "pass = _check$messages.pass, fail = _check$messages.fail",
        "schema.parse({ password: 'asdf', confirm: 'qwer' })",
        "const token = options.token || 'default-token'",
        "password = form.get('password') or 'password'",
        "token: string | null = stored ?? 'anonymous'",
        "secrets:\n  db-password:\n    external: true\n",
        "X25519PublicKey.register(rust_openssl.x25519.X25519PublicKey)",
        'token = r"[-!#$%&\'*+.^_`|~0-9a-zA-Z]+"',
        "names = [\n    PASSWD_MIN,\n    pwhash_scryptsalsa208sha256_PASSWD_MIN,\n]",
        "The token output-128k-beta2 is not one.",
        "docker run -u root -p 127.0.0.1:8080:80 app",
        "docker run --user 1000:1000 -v a:b app",
        'log.error("falling back to the environment key work_id=%s", work_id)',
        "#define OBJ_keyBag    OBJ_pkcs12_BagIds,1L",
        '#define SN_kx_ecdhe_psk         "KxECDHE-PSK"',
        "KEY_SIZE = nacl.bindings.crypto_aead_xchacha20poly1305_ietf_KEYBYTES",
        "cipher_TLS_DHE_PSK_WITH_ARIA_256_GCM_SHA384        uint16 = 0xC06D",
        '# define TLS1_TXT_PSK_WITH_AES_256_CCM_8  "PSK-AES256-CCM8"',
        'cmd.Env = append(os.Environ(), "PWD="+dir)',
        'tests = {{token.INT, "0123456x", "0123456 x", ""}, {token.FLOAT, "0x1.ffffp+1023", "", ""}}',
        "key_obj = PyUnicode_FromString(attr_name);",
        "('joe', 'password', 'proxy.example.com:3128')",
        "PrivateKey:  bitFlippingSigner{testRSA2048Cert.PrivateKey.(crypto.Signer)},",
        "testECDSAP256Key = testECDSAP256Cert.PrivateKey.(*ecdsa.PrivateKey)",
        "keyHex: pkcs8P521PrivateKeyHex,",
        "legacyMappings[key] = legacyOrdinalMappingFi{m1, fi}",
        'fmt.Sprintf("project config key languages.%s.languageCode", k)',
        "constant(token: Ng1Token, value: any): void;",
        "<td>--authentication-token-webhook-cache-ttl duration&nbsp;&nbsp;&nbsp;Default: 10s</td>",
        "keys aren&rsquo;t\nvery useful",
        'token:<span style="color:#bbb">\n</span><span style="color:#bbb"></span>kind',
        "AuthorizationMode=true|false (default=true)<br/>featureC=true|false",
        "npm access set mfa=none|publish|automation [<package>]",
        "salt is added to a password before it is {{glossary('hash function', 'hashed')}}",
        "sed -E 's/--password[= ][^ ]+/--password=[REDACTED]/g'",
        "Publish-Module -NuGetApiKey $env:NUGET_KEY -Verbose",
        "GENERATED_SECRET=$((RANDOM))",
        'GEM_HOST_API_KEY: "Bearer ${{secrets.GITHUB_TOKEN}}"',
        "--ssh-user USER --ssh-private-key PATH-TO-KEY",
        "kubectl config set-credentials [--token=bearer_token] [--password=basic_password]",
        "--discovery-token-ca-cert-hash sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866",
        "| server.key | --kubelet-client-key | --kubelet-client-certificate |",
        "gpg --keyserver hkps://keys.openpgp.org --recv-keys 5BE8A3F6C8A5C01D106C0AD820B1A390B168D356",
        "a [security key](/authentication/securing-your-account-with-2fa/configuring-2fa#security-key)",
        "'TAP::Formatter::Session' => 'http://rt.cpan.org/Public/Display.html?Name=Test-Harness',",
        "identity key continuity—if you use the same certificate",
        "files/md-shortcode-same-line-after.md",
        "| Token | Meaning |\n| --- | --- |\n| PLUS_ASSIGN | adds something to a name |",
    ],
)
def test_ordinary_source_code_is_not_redacted(text: str) -> None:
    assert scrubber().scrub(text) == (text, 0, ())
