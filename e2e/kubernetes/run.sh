#!/bin/bash
# Runs Kubernetes' own end-to-end tests against the running cluster; without one, it starts one and takes it down again.
# FOCUS and SKIP are regular expressions of specs, PROCS the number of specs at a time. Skips the specs of skip.txt, and those
# that disrupt others unless SKIP is set.
# CHANGES is a list of proxies and modes that take turns while specs run: "kube-proxy:nftables proxyc:nftables proxyc:iptables".
# Prints one line for each spec: result, seconds, name. Writes log, report.json and results.tsv to $OUT.
. "$(dirname "$0")/env.sh"
changer='' own=''
at_end() {
	[ -z "$changer" ] || kill "$changer" || true
	[ -z "$own" ] || "$HERE/down.sh" $$
}
trap at_end EXIT
if [ ! -e "$RUN/up" ]; then
	own=1
	OWNER=$$ "$HERE/up.sh" >/dev/null
fi
name=$PROXY-$MODE
[ "$MODE" != iptables ] || name+=-$IPTABLES
[ -z "${CHANGES:-}" ] || name=changes
out=${OUT:-$WORK/results/$name${DUAL:+-dual$DUAL}}
mkdir -p "$out"; rm -f "$out"/{report.json,results.tsv,changes}
skip=$(sed -n 's/^\([^#].*\)  #.*/\1/p' "$HERE/skip.txt" | paste -sd'|')
[ -n "$DUAL" ] || skip+='|\[Feature:IPv6DualStack\]'
SKIP=${SKIP-'\[Disruptive\]'}
start=$SECONDS code=0
if [ -n "${CHANGES:-}" ]; then
	: >"$out/changes"
	while :; do
		for to in $CHANGES; do
			PROXY=${to%:*} MODE=${to#*:} "$HERE/proxy.sh" 2>>"$out/changes" && say "$to runs" 2>>"$out/changes" || true
			sleep "${PAUSE:-20}"
		done
	done &
	changer=$!
fi
KUBE_SSH_USER=root KUBE_SSH_KEY_PATH=$RUN/ssh.key in_ns ctl ginkgo --procs="${PROCS:-6}" --focus="${FOCUS:-\[sig-network\]}" --skip="$skip${SKIP:+|$SKIP}" \
	--no-color --timeout=3h --output-dir="$out" --json-report=report.json "$BIN/e2e.test" -- \
	--provider="${PROVIDER:-local}" --kubeconfig="$RUN/kubeconfig" --kubectl-path="$BIN/kubectl" --num-nodes="$NODES" \
	--allowed-not-ready-nodes=0 --node-os-distro=debian --disable-log-dump --dump-logs-on-failure=false --report-dir="$out" \
	>"$out/log" 2>&1 || code=$?
[ -e "$out/report.json" ] || { tail -n 30 "$out/log"; die "no report: $out/log"; }
jq -r '.[].SpecReports[] | select(.LeafNodeType == "It" and .State != "pending" and (.State != "skipped" or (.Failure.Message // "") != ""))
	| [.State, (.RunTime / 1e9 | round), (.ContainerHierarchyTexts + [.LeafNodeText] | join(" ")), (if .State == "skipped" then .Failure.Message else "" end)] | @tsv' \
	"$out/report.json" | sort -t $'\t' -k3 | tee "$out/results.tsv"
[ -s "$out/results.tsv" ] || die "no spec matches FOCUS=${FOCUS:-} SKIP=$SKIP"
say "$(cut -f1 "$out/results.tsv" | sort | uniq -c | xargs): $((SECONDS - start)) s"
[ ! -e "$out/changes" ] || { grep -c runs "$out/changes" | sed 's/$/ changes of the proxy/' >&2; ! grep error "$out/changes" || code=1; }
exit $code
