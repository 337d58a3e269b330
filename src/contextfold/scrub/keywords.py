"""The keywords of the standard rules: those with one spelling, and the others, separated by `|`.

Each character stands for a byte. A keyword that contains another one is left out: a text that has it has both.

Written by tools/scrub_keywords.py; edit rules.toml, not this.
"""

# fmt: off
AS_WRITTEN = (
    "LS0tLS1CRUdJTiB|Private-Lines|AKIA|ASIA|ABIA|ACCA|IQoJ|FwoG|AIza|GOCSPX-|Q~|AZDO|JQQJ99|AAAA|LTAI|HRKU-|FlyV1"
    "|GR1348941|ATATT3|ATCTT3|ATBB|ATSTT3|pypi-AgE|AKCp|cmVmdGtu|CLOJARS_|MT|Mj|Mz|ND|NT|Nj|Nz|OD|OT|:AA|SK|SG.|NRAK-"
    "|NRII-|NRJS-|NRRA-|NRAL|A3-|CCIPRJ_|PMAK-|PMAT-|EAA|SSWS|eyJ|EZAK|EZTK|00D|dG9rO|AQVN|YCAJ|YCM|YCN|FLWSECK|FLWPUBK"
    "|AVNS_|ATTA|BSA|VF.DM.|VF.WS.|BBFF-|NF-|cGFzc|Bhc3|UGFzc|UEFTU|BBU1|c2VjcmV0|NlY3Jld|zZWNyZX|U0VDUkVU|NFQ1JFV"
    "|TRUNSRV|dG9rZW|Rva2Vu|VE9LRU|RPS0VO|UT0tFT|X2tle|9rZX|X0tFW|9LRV|a2V5|S0VZ|cHdk|UFdE|Z2hwX|Z2hvX|Z2h1X|Z2hzX"
    "|Z2hyX|Z2l0aHViX3BhdF|Z2xwYXQt|Z2xkdC|Z2xydC|c2tfbGl2ZV|cmtfbGl2ZV|c2tfdGVzdF|d2hzZWNf|eG94|eGFwcC|QUtJQ|QVNJQ"
    "|QUl6Y|eWEyOS|ZXlK|aGZf|bnBtX|cHlwaS|ZGNrcl9wYXRf|U0cu|aHZzL|c2hwYXRf|ZG9wX3YxX|bGluX2FwaV|dHNrZXkt|ZGFwa"
    "|RGVmYXVsdEVuZHBvaW50c1Byb3RvY29s|bWFjaGluZS|Oi8v|DovL|TovL|jovL|zovL|6Ly8|6Ly9|SecureString|{SSHA|DSN"
)
IN_ANY_CASE = (
    "kty|ctx_|ctx\\u005f|ctx%5f|aws_sk|ya29.|sig=|dop_v1_|doo_v1_|dor_v1_|heroku|cloudflare|v1.0-|cfut_|cfat_|cfk_|fo1_"
    "|fm2_|fm1r_|pscale_|sbp_|vcp_|vci_|vca_|vcr_|vck_|vercel_blob_rw_|nfp_|nfo_|nfc_|rnd_|ghp_|gho_|ghu_|ghs_|ghr_"
    "|ghp\\u005f|ghp%5f|gho\\u005f|gho%5f|ghu\\u005f|ghu%5f|ghs\\u005f|ghs%5f|ghr\\u005f|ghr%5f|github\\u005f|github%5f"
    "|gldt-|glrt-|glptt-|glcbt-|glft-|glimt-|glagent-|gloas-|glsoat-|glffct-|npm_|rubygems_|cio|oy2|dckr_oat_|auth|sk-"
    "|hf_|r8_|pplx-|xai-|fw_|tvly-|lsv2_|pa-|jina_|tgp_v1_|e2b_|fc-|exa_|rk_prod_|whsec_|shpca_|shppa_|shpss_|shptka_"
    "|shpua_|shpit_|shpsa_|shppk_|shpme_|shpcr_|xoxb-|xoxp-|xoxa-|xoxr-|xoxs-|xoxe|xoxo-|xoxc-|xoxd-|xapp-"
    "|hooks.slack.com|twilio|mailgun|-us|md-|xsmtpsib-|re_|dose|datadog|dd_app|dd-application|ddapp_|sntrys_|sntryu_"
    "|sntrya_|sntryi_|sentry|glsa_|glc_|hcaik_|hcxik_|hcxlk_|hcxmk_|dt0c|dt0s|hvs.|hvb.|hvr.|.atlasv1.|dp.pt.|dp.st."
    "|dp.ct.|dp.sa.|dp.scim.|dp.audit.|pul-|bkua_|bkaj_|bkct_|sqp_|squ_|sqa_|sdk-|mob-|lin_wh_|ntn_|pat|asana|1/|2/|0/"
    "|figd_|figo_|figp_|figu_|figdr_|figor_|da2-|amzn.mws.|amzn1.oa2-cs.|sha256~|sgp_|sgd_|slk_|tines.com|tines.io"
    "|hook.|maker.ifttt.com|/hooks/|1000.|_mmk|sat.|pub-c-|sec-c-|sub-c-|sm_aat_|sm_sat_|recaptcha|ngrok|t1.9eu|y0_"
    "|aio_|duffel_|pnu_|shippo_|tfp_|rdme_|ico-|phx_|phs_|fio-u-|xau_|rpa_|rzp_|ddp_|ddw_|4b1d|p8e-|p8e_|polar_|jca_"
    "|cflt|zpka_|atkn_|endr+|rootly_|persona_|rdb_|ngc_|wandb_v1_|sbx_|sq0|ubr_|tly-|u+|sc_|ext_|live_|test_|ghost_"
    "|pdl_|plat_|ek_|clh_|dtd_|snyk_|lts_|tcp_|fs_|ctp_|trigger_|tr_prod_|tr_dev_|knock_|mintlify_|mint_|growthbook"
    "|inngest|ocd_|onfido|sl.|sk_|0b2tlb|c2st|%70%61%73%73|%70%77%64|%73%65%63%72%65%74|%74%6f%6b%65%6e|%6b%65%79"
    "|%63%72%65%64|%3a%2f%2f|%67%68%70%5f|%67%68%6f%5f|%67%68%75%5f|%67%68%73%5f|%67%68%72%5f|%67%69%74%68|%67%6c%70%61"
    "|%73%6b%5f|%73%6b%2d|%72%6b%5f|%78%6f%78|%41%4b%49%41|%41%53%49%41|%41%49%7a%61|%65%79%4a|%68%66%5f|%6e%70%6d%5f"
    "|%70%79%70%69|%53%47%2e|%68%76%73%2e|%73%68%70%61|%64%6f%70%5f|%77%68%73%65|%61%75%74%68|%50%41%53%53|%50%57%44"
    "|%53%45%43%52%45%54|%54%4f%4b%45%4e|%4b%45%59|%43%52%45%44|%41%55%54%48|%50%61%73%73|%53%65%63%72%65%74"
    "|%54%6f%6b%65%6e|%4b%65%79|%41%75%74%68|://|jdbc:oracle|sqlplus|@tcp(|@unix(|@udp(|@(|:3306|:27017|:6379|:5672"
    "|:1433|:54|:64|:*:|%253a%252f%252f|bearer|basic|sess|sid=|cookie|jwt=|state=|pass|pw|token|secret|access|curl"
    "|mysql|mariadb|docker|podman|helm|redis-cli|openssl|ldap|smbclient|mongo|sqlcmd|psql|wget|7z|lftp|mosquitto"
    "|rabbitmqctl|net use|twine|sudo|http |zip |login|machine|identified|config:set|setx|vault |consul |put-parameter"
    "|expect|$2a$|$2b$|$2y$|$6$|$5$|$1$|$y$|$argon2|$apr1$|pbkdf2_sha|scrypt$|psk|kennwort|contrase|key|wachtwoord"
    "|senha|l\xe3\xb6senord|\xe5\xaf\x86\xe7\xa0\x81|\xe5\xaf\x86\xe7\xa2\xbc|\xe5\x8f\xa3\xe4\xbb\xa4"
    "|\xe3\x83\x91\xe3\x82\xb9\xe3\x83\xaf\xe3\x83\xbc\xe3\x83\x89|\xf0\xb0\xf1\x80\xf0\xbe\xf0\xbb\xf1\x8c"
    "|\xeb\xb9\x84\xeb\xb0\x80\xeb\xb2\x88\xed\x98\xb8|\\u0430\\u0440\\u043e\\u043b\\u044c|\\u5bc6\\u78|\\u53e3\\u4ee4"
    "|\\u30d1\\u30b9\\u30ef|\\ube44\\ubc00|l\\u00f6senord|pin|otp|mfa|2fa|code|api|cred|salt|connect|pdo|#define"
    "|# define|variable|sign|hmac|nonce|seed|webhook|license"
)
