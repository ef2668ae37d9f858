"""Configuration files and command lines of the node's components. Pure; paths are those inside the node."""

from __future__ import annotations

import json
from typing import Any

from localcluster import layout

PKI = f"{layout.NODE_RUN}/pki"
KUBECONFIGS = f"{layout.NODE_RUN}/kubeconfig"
CONFIGS = f"{layout.NODE_RUN}/config"
PAUSE_IMAGE = "localhost/pause:e2e"
COREDNS_IMAGE = "localhost/coredns:e2e"
ETCD_QUOTA_BYTES = 1 << 30
ETCD_URL = "http://127.0.0.1:2379"


def files(cgroup: str) -> dict[str, str]:
    """Name → content of all configuration files; they lie in CONFIGS."""
    return {
        "containerd.toml": _containerd(),
        "cni/10-bridge.conflist": _json(_cni()),
        "kubelet.yaml": _json(_kubelet(cgroup)),
        "kube-proxy.yaml": _json(_proxy()),
        "pods-resolv.conf": "",  # pods with dnsPolicy Default have no name server
        "resolv.conf": f"nameserver {layout.DNS_ADDRESS}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n",
    }


def components(port: int) -> dict[str, list[str]]:
    """Name → command line of every component."""
    return {
        "etcd": _etcd(),
        "containerd": ["containerd", "--config", f"{CONFIGS}/containerd.toml"],
        "kube-apiserver": _apiserver(port),
        "kube-controller-manager": _controller_manager(),
        "kube-scheduler": _scheduler(),
        "kubelet": _kubelet_command(),
        "kube-proxy": ["kube-proxy", f"--config={CONFIGS}/kube-proxy.yaml"],
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def _etcd() -> list[str]:
    return [
        "etcd",
        "--data-dir=/run/etcd",  # memory: a loaded disk must not slow the API down, and no state outlives the cluster
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--max-wals=2",
        "--max-snapshots=2",
        f"--quota-backend-bytes={ETCD_QUOTA_BYTES}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=5m",
        "--logger=zap",
    ]


def _apiserver(port: int) -> list[str]:
    return [
        "kube-apiserver",
        f"--etcd-servers={ETCD_URL}",
        f"--advertise-address={layout.NODE_ADDRESS}",
        f"--secure-port={port}",
        f"--service-cluster-ip-range={layout.SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",  # beside the defaults, PodSecurity among them
        "--allow-privileged=true",
        f"--tls-cert-file={PKI}/apiserver.crt",
        f"--tls-private-key-file={PKI}/apiserver.key",
        f"--client-ca-file={PKI}/ca.crt",
        f"--service-account-key-file={PKI}/service-accounts.pub",
        f"--service-account-signing-key-file={PKI}/service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--kubelet-client-certificate={PKI}/apiserver-to-kubelet.crt",
        f"--kubelet-client-key={PKI}/apiserver-to-kubelet.key",
        f"--kubelet-certificate-authority={PKI}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",  # the node's name is in no DNS
        f"--requestheader-client-ca-file={PKI}/front-ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={PKI}/front-proxy.crt",
        f"--proxy-client-key-file={PKI}/front-proxy.key",
        "--profiling=false",
        "--feature-gates=WatchList=false",  # it needs etcd 3.4.25: clients of Java would retry for ever
    ]


def _controller_manager() -> list[str]:
    return [
        "kube-controller-manager",
        f"--kubeconfig={KUBECONFIGS}/kube-controller-manager",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--root-ca-file={PKI}/ca.crt",
        f"--service-account-private-key-file={PKI}/service-accounts.key",
        f"--cluster-signing-cert-file={PKI}/ca.crt",
        f"--cluster-signing-key-file={PKI}/ca.key",
        "--allocate-node-cidrs=true",
        f"--cluster-cidr={layout.POD_CIDR}",
        f"--service-cluster-ip-range={layout.SERVICE_CIDR}",
        "--bind-address=127.0.0.1",
    ]


def _scheduler() -> list[str]:
    kubeconfig = f"{KUBECONFIGS}/kube-scheduler"
    return [
        "kube-scheduler",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]


def _kubelet_command() -> list[str]:
    return [
        "kubelet",
        f"--config={CONFIGS}/kubelet.yaml",
        f"--kubeconfig={KUBECONFIGS}/kubelet",
        f"--hostname-override={layout.NODE_NAME}",
        f"--node-ip={layout.NODE_ADDRESS}",
        f"--root-dir={layout.NODE_RUN}/kubelet",
        f"--cert-dir={layout.NODE_RUN}/kubelet/pki",
    ]


def _containerd() -> str:
    return f"""\
version = 2
root = "{layout.NODE_RUN}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{layout.CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true # lowering it needs CAP_SYS_RESOURCE, which containers that run CI lack
enable_unprivileged_ports = false

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{CONFIGS}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def _cni() -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "hairpinMode": True,  # a pod may reach itself by its Service
        "ipMasq": False,  # there is no outside
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/cni",
            "ranges": [[{"subnet": layout.NODE_POD_CIDR}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _kubelet(cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{PKI}/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{PKI}/kubelet-server.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "clusterDNS": [layout.DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{layout.CONTAINERD_SOCKET}",
        "resolvConf": f"{CONFIGS}/pods-resolv.conf",
        "podLogsDir": f"{layout.NODE_RUN}/pod-logs",
        "maxPods": layout.MAX_PODS,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,  # an image that was loaded cannot be pulled again
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": False,
    }


def _proxy() -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": f"{KUBECONFIGS}/kube-proxy"},
        "clusterCIDR": layout.POD_CIDR,
        "hostnameOverride": layout.NODE_NAME,
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        # The limits of connection tracking belong to the machine, not to a network namespace: they stay as they are.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
