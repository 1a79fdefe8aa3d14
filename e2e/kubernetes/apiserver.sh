#!/bin/bash
# Runs kube-apiserver on ctl, like a kubelet that runs a static pod: whoever deletes the Pod restarts the server. The Pod has
# no node, since ctl has no kubelet. Until the new server has its Pod, packets from others are dropped, because the tests
# expect that requests wait instead of failing.
. "$(dirname "$0")/env.sh"
server=https://127.0.0.1:6443
pods=$server/api/v1/namespaces/kube-system/pods
name=kube-apiserver-ctl
token=$(cut -d, -f1 <(grep ,admin, "$RUN/tokens.csv"))
api() { curl -sS -m 10 --cacert "$RUN/api.crt" -H "Authorization: Bearer $token" "$@"; }

start() {
	kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address "$(if [ "$DUAL" = 6 ]; then echo ::; else echo 0.0.0.0; fi)" \
		--advertise-address "$ADDRESS" --secure-port 6443 --tls-cert-file "$RUN/api.crt" --tls-private-key-file "$RUN/api.key" \
		--token-auth-file "$RUN/tokens.csv" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
		--service-account-key-file "$RUN/sa.key" --service-account-signing-key-file "$RUN/sa.key" \
		--service-account-issuer https://kubernetes.default.svc.cluster.local --service-cluster-ip-range "$SERVICE_RANGE" \
		--kubelet-preferred-address-types InternalIP &
	pid=$!
	retry 90 api -f "$server/readyz"
	# The first time this waits for the controller manager, which creates the service account.
	retry 90 api -f "$pods" -H 'Content-Type: application/json' -d "{\"metadata\": {\"name\": \"$name\", \"labels\": {\"component\": \"kube-apiserver\"}},
		\"spec\": {\"schedulerName\": \"none\", \"containers\": [{\"name\": \"kube-apiserver\", \"image\": \"none\"}]}}"
	retry 30 api -f -X PATCH "$pods/$name/status" -H 'Content-Type: application/merge-patch+json' \
		-d '{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}'
}
start
while sleep 1; do
	[ "$(api -o /dev/null -w '%{http_code}' "$pods/$name" || true)" = 404 ] || continue
	say "restarting"
	nft 'add table inet restart
		add chain inet restart input { type filter hook input priority 0; }
		add rule inet restart input ip daddr 127.0.0.1 accept
		add rule inet restart input ip6 daddr ::1 accept
		add rule inet restart input tcp dport 6443 drop'
	kill -KILL $pid               # the tests delete the Pod with grace period 0
	wait $pid || true
	start
	nft delete table inet restart
	say "restarted"
done
