"""Keys, certificates and kubeconfigs of a cluster, made at every start."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.layout import API_SERVICE_ADDRESS, NODE_ADDRESS, NODE_NAME

DAYS = "365"
OPENSSL_LIMIT_S = 60
OPENSSL_CONFIG = "[req]\ndistinguished_name = names\n[names]\n"  # the system's own would add extensions
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
API_NAMES = (
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,"
    f"DNS:localhost,IP:127.0.0.1,IP:{API_SERVICE_ADDRESS},IP:{NODE_ADDRESS}"
)
# The identities that Kubernetes' built-in roles are bound to.
CLIENTS = {
    "admin": "/O=system:masters/CN=tailrace-e2e",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
}


def make(pki: Path, kubeconfigs: Path, port: int) -> None:
    """Fill both folders; the API server is at 127.0.0.1:``port`` for every client."""
    for folder in (pki, kubeconfigs):
        folder.mkdir(parents=True, mode=0o700)
    (pki / "openssl.cnf").write_text(OPENSSL_CONFIG)
    for authority in ("ca", "front-ca"):
        _authority(pki, authority)
    _openssl("genrsa", "-out", pki / "service-accounts.key", "2048")
    _openssl("rsa", "-in", pki / "service-accounts.key", "-pubout", "-out", pki / "service-accounts.pub")
    _certificate(pki, "apiserver", "/CN=kube-apiserver", "ca", "serverAuth", API_NAMES)
    kubelet_names = f"DNS:{NODE_NAME},IP:127.0.0.1,IP:{NODE_ADDRESS}"
    _certificate(pki, "kubelet-server", f"/CN={NODE_NAME}", "ca", "serverAuth", kubelet_names)
    _certificate(pki, "apiserver-to-kubelet", "/O=system:masters/CN=kube-apiserver", "ca", "clientAuth")
    _certificate(pki, "front-proxy", "/CN=front-proxy", "front-ca", "clientAuth")
    for client, subject in CLIENTS.items():
        _certificate(pki, client, subject, "ca", "clientAuth")
        _write_private(kubeconfigs / client, json.dumps(_kubeconfig(pki, client, port), indent=1))


def _authority(pki: Path, name: str) -> None:
    _openssl(
        *("req", "-x509", "-new", "-config", pki / "openssl.cnf", *NEW_KEY),
        *("-keyout", pki / f"{name}.key", "-out", pki / f"{name}.crt", "-days", DAYS, "-subj", f"/CN=tailrace-{name}"),
        *("-addext", "basicConstraints=critical,CA:TRUE"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
    )


def _certificate(pki: Path, name: str, subject: str, authority: str, usage: str, names: str = "") -> None:
    _openssl(
        *("req", "-x509", "-new", "-config", pki / "openssl.cnf", *NEW_KEY),
        *("-CA", pki / f"{authority}.crt", "-CAkey", pki / f"{authority}.key", "-days", DAYS, "-subj", subject),
        *("-keyout", pki / f"{name}.key", "-out", pki / f"{name}.crt"),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"extendedKeyUsage={usage}"),
        *("-addext", "keyUsage=critical,digitalSignature"),
        *(("-addext", f"subjectAltName={names}") if names else ()),
    )


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=OPENSSL_LIMIT_S
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ClusterError(f"openssl {arguments[0]} failed (3.0 or later is needed): {lines[-1]}")


def _kubeconfig(pki: Path, client: str, port: int) -> dict[str, object]:
    def encoded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": encoded("ca.crt")}
    user = {
        "client-certificate-data": encoded(f"{client}.crt"),
        "client-key-data": encoded(f"{client}.key"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tailrace-e2e", "cluster": cluster}],
        "users": [{"name": client, "user": user}],
        "contexts": [{"name": "tailrace-e2e", "context": {"cluster": "tailrace-e2e", "user": client}}],
        "current-context": "tailrace-e2e",
    }


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
