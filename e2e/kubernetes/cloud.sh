#!/bin/bash
# The load balancers of a cloud, on ctl: a Service of type LoadBalancer gets the address of its clusterIP with $LBS instead of
# $SVCS. Connections to it are routed to the nodes that pass the Service's health check, to the first one with session affinity.
# The client's address is not that of a node's network. Like cloud providers, it ignores Services with a loadBalancerClass.
. "$(dirname "$0")/env.sh"
token=$(cut -d, -f1 <(grep ,admin, "$RUN/tokens.csv"))
api() { curl -sS --fail-with-body --cacert "$RUN/api.crt" -H "Authorization: Bearer $token" "$@"; }
server=https://$NET.1:6443
client=$LBS.255.1
ip addr add "$client/32" dev lo
# Packets to a load balancer that does not exist, or has no healthy node, are dropped: a bridge without ports has no neighbour.
ip link add lb type bridge
ip link set lb arp off up
ip route add "$LBS.0.0/16" dev lb src "$client"
sysctl -qw net.ipv4.fib_multipath_hash_policy=1
nodes() { seq -f "$NET.1%g" "$NODES"; }

# services prints a line for each Service: namespace, name, port of the health check, wanted address, affinity, address in the status. "-" is none.
services() {
	api "$server/api/v1/services" | jq -r --arg from "$SVCS." --arg to "$LBS." '.items[]
		| (.spec.type == "LoadBalancer" and .spec.loadBalancerClass == null) as $ours
		| select($ours or .status.loadBalancer.ingress != null)
		| [.metadata.namespace, .metadata.name, (.spec.healthCheckNodePort // 10256),
			(if $ours then .spec.clusterIP | sub("^" + $from; $to) else "-" end), .spec.sessionAffinity, (.status.loadBalancer.ingress[0].ip? // "-")]
		| join(" ")'
}
set_status() {
	api -o /dev/null -X PATCH -H 'Content-Type: application/merge-patch+json' "$server/api/v1/namespaces/$1/services/$2/status" \
		-d "{\"status\": {\"loadBalancer\": {\"ingress\": $3}}}" || true
}
declare -A routed
while sleep 1; do
	declare -A seen=()
	while read -r namespace name port want affinity have; do
		if [ "$want" = - ]; then
			set_status "$namespace" "$name" null
			continue
		fi
		hops=
		for node in $(nodes); do
			[ "$affinity" != ClientIP ] || [ -z "$hops" ] || break
			if curl -sf -m 1 -o /dev/null "http://$node:$port/healthz"; then hops+=" nexthop via $node"; fi
		done
		seen[$want]=1
		if [ "${routed[$want]:-}" != "$hops" ]; then
			if [ -n "$hops" ]; then ip route replace "$want" src "$client" $hops; else ip route del "$want"; fi
			routed[$want]=$hops
		fi
		[ "$have" = "$want" ] || set_status "$namespace" "$name" "[{\"ip\": \"$want\"}]"
	done < <(services || true)
	for address in "${!routed[@]}"; do
		[ -n "${seen[$address]:-}" ] || { ip route del "$address" || true; unset "routed[$address]"; }
	done
done
