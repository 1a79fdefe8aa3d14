#!/bin/bash
# Runs $PROXY in mode $MODE on the nodes of the running cluster, one node after the other, in place of the proxy that runs there.
. "$(dirname "$0")/env.sh"
case $PROXY in
proxyc) command="proxyc, watch" ;;
kube-proxy) command="kube-proxy" ;;
*) die "PROXY=$PROXY: use proxyc or kube-proxy" ;;
esac
# The name contains the mode, so that the DaemonSet changes with it. The size of the conntrack table belongs to the machine,
# not to the namespace. The tests of localhost node ports need them in mode nftables; other modes serve them by default.
config=proxy-$MODE.yaml
loopback6=
[ -z "$DUAL" ] || loopback6=', "::1/128"'
for n in $(seq "$NODES"); do
	cat >"$RUN/node$n/$config" <<-Y
	apiVersion: kubeproxy.config.k8s.io/v1alpha1
	kind: KubeProxyConfiguration
	mode: $MODE
	clusterCIDR: $POD_RANGE
	hostnameOverride: node$n
	clientConnection: {kubeconfig: $RUN/proxy.kubeconfig}
	healthzBindAddress: "$(if [ "$DUAL" = 6 ]; then echo '[::]'; else echo 0.0.0.0; fi):10256"
	metricsBindAddress: 127.0.0.1:10249
	oomScoreAdj: 0
	conntrack: {maxPerCore: 0, min: 0}
	Y
	[ "$MODE" != nftables ] || cat >>"$RUN/node$n/$config" <<-Y
	nodePortAddresses: [primary, 127.0.0.0/8$loopback6]
	featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}
	Y
done
before=$(k -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.containers[0].command[4]}' 2>/dev/null || true)
# A DaemonSet like that of kubeadm, whose labels the tests know.
k apply -f - >/dev/null <<Y
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system, labels: {k8s-app: kube-proxy}}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      hostNetwork: true
      priorityClassName: system-node-critical
      tolerations: [{operator: Exists}]
      containers:
      - name: proxy
        image: $(image distroless-iptables)
        command: [sh, -c, 'PATH=$WORK/iptables/$IPTABLES:$BIN:\$PATH exec "\$@" --config $RUN/\$NODE/$config', sh, $command]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        readinessProbe: {httpGet: {port: 10256, path: /healthz}}
        volumeMounts:
        - {name: work, mountPath: $WORK, readOnly: true}
        - {name: run, mountPath: $RUN, readOnly: true}
        - {name: var, mountPath: /var/lib/proxyc}
        - {name: socket, mountPath: /run}
        - {name: modules, mountPath: /lib/modules, readOnly: true}
      volumes:
      - {name: work, hostPath: {path: $WORK}}
      - {name: run, hostPath: {path: $RUN}}
      - {name: var, hostPath: {path: /var/lib/proxyc, type: DirectoryOrCreate}}
      - {name: socket, hostPath: {path: /run}}
      - {name: modules, hostPath: {path: /lib/modules, type: DirectoryOrCreate}}
Y
k -n kube-system rollout status daemonset kube-proxy --timeout 180s >/dev/null ||
	{ k -n kube-system get pods -o wide; die "$PROXY is not ready on all nodes: $RUN/log"; }
# kube-proxy leaves the rules of proxyc (docs/operate.md, Roll back).
if [ "$before" = proxyc ] && [ "$PROXY" = kube-proxy ]; then
	for n in $(seq "$NODES"); do retry 60 in_ns "node$n" proxyc cleanup --keep-kube-proxy || die "node$n: proxyc cleanup --keep-kube-proxy fails"; done
fi
