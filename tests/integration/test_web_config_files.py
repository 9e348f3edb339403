"""Web configuration files, as promtool reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from exporter.web_config.reader import read_web_config
from slos.errors import InvalidFile
from tests.test_web_config import HASH, MUTUAL, TLS, USERS
from tests.test_web_config import pairs as pairs

BOTH_ACCEPT = {
    "tls": TLS,
    "mutual": MUTUAL,
    "users": USERS,
    "headers": "http_server_config: {http2: false, headers: {X-Frame-Options: deny}}\n",
    "options": "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    "  min_version: TLS12\n  max_version: TLS13\n  prefer_server_cipher_suites: false\n"
    "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n"
    "  curve_preferences: [CurveP256]\n",
}
# The promtool of Debian 12 is older than this key.
ONLY_WE_ACCEPT = {"sans": f"{MUTUAL}  client_allowed_sans: [a.example, 127.0.0.1]\n"}
BOTH_REFUSE = {
    "unknown": "basic_auth_user: {}\n",
    "password": "basic_auth_users: {a: hunter2}\n",
    "keyless": "tls_server_config: {cert_file: server.pem}\n",
    "no_pair": "tls_server_config: {cert_file: server.pem, key_file: client.key}\n",
    "policy": "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    "  client_ca_file: client.pem\n",
    "suite": "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    "  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n",
    "version": "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    "  min_version: TLS9\n",
    "header": "http_server_config: {headers: {Server: mine}}\n",
    "frame": "http_server_config: {headers: {X-Frame-Options: allow}}\n",
}
ONLY_PROMETHEUS_ACCEPTS = {
    "unverified": "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    "  client_auth_type: RequireAnyClientCert\n",
    "obsolete": "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    "  min_version: TLS10\n",
    "curves": "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    "  curve_preferences: [CurveP256, X25519]\n",
    "cost": f'basic_auth_users: {{a: "{HASH.replace("$04$", "$31$")}"}}\n',
    "empty": "",
}


def accepts(path: Path) -> bool:
    try:
        read_web_config(str(path))
    except InvalidFile:
        return False
    return True


def test_web_configuration_files_are_valid_where_they_are_for_prometheus(
    promtool: Path, pairs: Path, tmp_path: Path
) -> None:
    shutil.copytree(pairs, tmp_path, dirs_exist_ok=True)
    files = {**BOTH_ACCEPT, **BOTH_REFUSE, **ONLY_WE_ACCEPT, **ONLY_PROMETHEUS_ACCEPTS}
    found = {}
    for name, text in files.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        done = subprocess.run([promtool, "check", "web-config", path], capture_output=True)
        found[name] = (done.returncode == 0, accepts(path))
    assert found == {
        **dict.fromkeys(BOTH_ACCEPT, (True, True)),
        **dict.fromkeys(BOTH_REFUSE, (False, False)),
        **dict.fromkeys(ONLY_WE_ACCEPT, (False, True)),
        **dict.fromkeys(ONLY_PROMETHEUS_ACCEPTS, (True, False)),
    }
