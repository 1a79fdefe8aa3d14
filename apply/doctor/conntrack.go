package doctor

import (
	"bufio"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/apply/sysctl"
)

// fullWarning is the usage of the conntrack table that is reported, in percent.
const fullWarning = 75

// conntrack checks the usage of the conntrack table, and its losses and those of rp_filter.
func (e *examination) conntrack(context.Context) {
	const check = "conntrack"
	count, limit, full := sysctl.Tracked(e.Root)
	if limit == 0 {
		e.add(check, Warning, "modprobe nf_conntrack", "the kernel does not track connections yet")
		return
	}
	const raise = "raise conntrack.maxPerCore of the configuration, or find the source of the connections (conntrack -L)"
	switch {
	case full != "":
		e.add(check, Error, raise, "%s", full)
	case count*100 >= limit*fullWarning:
		e.add(check, Warning, raise, "%d of %d entries are used", count, limit)
	default:
		e.add(check, OK, "", "%d of %d entries are used", count, limit)
	}
	netstat, _ := e.Root.Read("proc/net/netstat")
	lines := strings.Split(netstat, "\n")
	for i := range len(lines) - 1 { // names, then values
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if at := slices.Index(names, "IPReversePathFilter"); at > 0 && at < len(values) && values[at] != "0" {
			e.add("rp_filter", Warning, "if a network with clients sends by another interface than it receives, set net.ipv4.conf.INTERFACE.rp_filter to 2",
				"%s packets were dropped since the kernel started, because their source is reached by another interface", values[at])
		}
	}
	text, err := e.Root.Read("proc/net/stat/nf_conntrack")
	if err != nil {
		return
	}
	lost := conntrackLosses(text)
	for _, of := range [...]struct{ column, means, do string }{
		{"drop", "packets were dropped, because the table was full or an entry could not be created", raise},
		{"early_drop", "connections were evicted to make room", raise},
		{"insert_failed", "packets were dropped, because two packets of one flow raced", "nothing if the number is stable; the usual cause is DNS over UDP from many clients at once"},
	} {
		if n := lost[of.column]; n > 0 {
			e.add(check+" "+of.column, Warning, of.do, "%d %s since the kernel started", n, of.means)
		}
	}
}

// conntrackLosses returns the sums of the columns of /proc/net/stat/nf_conntrack, which has a line
// of hexadecimal numbers for each CPU.
func conntrackLosses(text string) map[string]uint64 {
	sums := map[string]uint64{}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Scan()
	names := strings.Fields(lines.Text())
	for lines.Scan() {
		for i, word := range strings.Fields(lines.Text()) {
			if n, err := strconv.ParseUint(word, 16, 64); err == nil && i < len(names) {
				sums[names[i]] += n
			}
		}
	}
	return sums
}
