#!/bin/bash
# Joins the results of runs into docs/reference/kubernetes-e2e.tsv: a row for each spec, a column for each run in
# $WORK/results. Directories whose names differ only after a dot are one run: proxyc-nftables, proxyc-nftables.slow. A spec
# that one of them skipped has the result of the other.
. "$(dirname "$0")/env.sh"
export LC_ALL=C
cd "$WORK/results"
mapfile -t runs < <(printf '%s\n' * | sed 's/\..*//' | sort -u)
awk -F '\t' -v OFS='\t' -v runs="${runs[*]}" '
	BEGIN { n = split(runs, run, " ") }
	{ split(FILENAME, part, "[./]"); specs[$3] }
	$1 != "skipped" || !(($3, part[1]) in state) { state[$3, part[1]] = $1 }
	END {
		line = "spec"
		for (i = 1; i <= n; i++) line = line OFS run[i]
		print line
		fflush()
		for (s in specs) {
			line = s
			for (i = 1; i <= n; i++) line = line OFS ((s, run[i]) in state ? state[s, run[i]] : "-")
			print line | "sort"
		}
	}' */results.tsv >"$HERE/../../docs/reference/kubernetes-e2e.tsv"
