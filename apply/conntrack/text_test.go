package conntrack

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Lines of conntrack 1.4.7 and of /proc/net/nf_conntrack (Linux 6.18). Those of the fast path and of SELinux
// are composed after libnetfilter_conntrack (src/conntrack/snprintf_default.c).
const recorded = `udp      17 29 src=10.244.1.10 dst=10.96.0.30 sport=53193 dport=53 [UNREPLIED] src=10.96.0.30 dst=10.244.1.10 sport=53 dport=53193 mark=0 use=1
tcp      6 431999 ESTABLISHED src=10.244.1.10 dst=10.96.0.20 sport=33768 dport=80 src=10.244.1.10 dst=192.0.2.200 sport=8080 dport=33768 [ASSURED] mark=0 use=1
ipv6     10 tcp      6 431999 ESTABLISHED src=fd00:0244:0000:0000:0000:0000:0000:0010 dst=fd00:0096:0000:0000:0000:0000:0000:0020 sport=54462 dport=80 src=fd00:0244:0000:0000:0000:0000:0000:0010 dst=fd00:0244:0000:0000:0000:0000:0000:0010 sport=8080 dport=54462 [ASSURED] mark=0 zone=0 use=2
udp      17 98 src=10.1.1.1 dst=10.96.0.20 sport=1 dport=80 [UNREPLIED] src=10.96.0.20 dst=10.1.1.1 sport=80 dport=1 zone-reply=4 mark=0 use=1
udplite  136 98 src=10.1.1.1 dst=10.96.0.20 sport=1 dport=4 [UNREPLIED] src=10.96.0.20 dst=10.1.1.1 sport=4 dport=1 mark=0 use=1
unknown  50 98 src=10.1.1.1 dst=10.96.0.20 [UNREPLIED] src=10.96.0.20 dst=10.1.1.1 mark=0 use=1

ipv4     2 gre      47 98 timeout=0, stream_timeout=0 src=10.1.1.1 dst=10.96.0.20 srckey=0x4 dstkey=0x5 [UNREPLIED] src=10.96.0.20 dst=10.1.1.1 srckey=0x5 dstkey=0x4 mark=0 zone=0 use=2
tcp      6 98 TIME_WAIT src=10.1.1.7 dst=10.96.0.20 sport=1 dport=80 packets=0 bytes=0 src=10.244.1.10 dst=10.1.1.7 sport=8080 dport=1 packets=0 bytes=0 [ASSURED] mark=0 use=1
ipv4     2 sctp     132 98 ESTABLISHED src=10.1.1.1 dst=10.96.0.20 sport=1 dport=9 packets=0 bytes=0 [UNREPLIED] src=10.96.0.20 dst=10.1.1.1 sport=9 dport=1 packets=0 bytes=0 mark=0 use=1 id=101242310
tcp      6 src=10.1.1.8 dst=10.96.0.20 sport=1 dport=80 src=10.244.1.10 dst=10.1.1.8 sport=8080 dport=1 [OFFLOAD] mark=16384 secctx=system_u:object_r:unlabeled_t:s0 zone=5 use=2 labels=a,b
conntrack v1.4.7 (conntrack-tools): 11 flow entries have been shown.`

func TestReadText(t *testing.T) {
	var got []string
	if err := ReadText(strings.NewReader(recorded), func(e Entry) error {
		got = append(got, fmt.Sprintf("%s state=%s zone=%d unanswered=%t", e, e.State, e.Zone, e.Unanswered))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	other := "invalid AddrPort -> invalid AddrPort (invalid AddrPort)/unknown state= zone=0 unanswered=false"
	want := []string{
		"10.244.1.10:53193 -> 10.96.0.30:53 (10.96.0.30:53)/udp state= zone=0 unanswered=true",
		"10.244.1.10:33768 -> 10.96.0.20:80 (10.244.1.10:8080)/tcp state=ESTABLISHED zone=0 unanswered=false",
		"[fd00:244::10]:54462 -> [fd00:96::20]:80 ([fd00:244::10]:8080)/tcp state=ESTABLISHED zone=0 unanswered=false",
		"10.1.1.1:1 -> 10.96.0.20:80 (10.96.0.20:80)/udp state= zone=4 unanswered=true",
		other, other, other,
		"10.1.1.7:1 -> 10.96.0.20:80 (10.244.1.10:8080)/tcp state=TIME_WAIT zone=0 unanswered=false",
		"10.1.1.1:1 -> 10.96.0.20:9 (10.96.0.20:9)/sctp state=ESTABLISHED zone=0 unanswered=true",
		"10.1.1.8:1 -> 10.96.0.20:80 (10.244.1.10:8080)/tcp state=OFFLOAD zone=5 unanswered=false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got)\n%s", diff)
	}
}

func TestReadTextNamesTheLine(t *testing.T) {
	const good = "udp 17 29 src=10.0.0.1 dst=10.96.0.30 sport=5 dport=53 src=10.96.0.30 dst=10.0.0.1 sport=53 dport=5 use=1\n"
	for line, want := range map[string]string{
		`<?xml version="1.0"?>`:                     "must begin with a protocol and its number",
		"-A -t 431998 -u SEEN_REPLY -s 10.244.1.10": "must begin with a protocol and its number",
		"tcp": "must begin with a protocol and its number",
		"tcp 6 9 ESTABLISHED src=10.0.0.1 dst=10.96.0.20 sport=1 dport=80 src=10.2":                                            "must have src",
		"tcp 6 9 ESTABLISHED src=10.0.0.1 dst=10.96.0.20 sport=1 dport=80000 src=10.2.0.1 dst=10.0.0.1 sport=1 dport=1":        "must have src",
		"tcp 6 9 ESTABLISHED src=10.0.0.1 dst=fd00::1 sport=1 dport=80 src=10.2.0.1 dst=10.0.0.1 sport=1 dport=1":              "must have src",
		"tcp 6 9 ESTABLISHED src=10.0.0.1 dst=10.96.0.20 sport=1 dport=80 [UNREPLIED] src=fd00::1 dst=fd00::2 sport=1 dport=1": "must have src",
		strings.Repeat("x", 1<<17): "too long",
	} {
		err := ReadText(strings.NewReader(good+line+"\n"), func(Entry) error { return nil })
		if err == nil || !strings.HasPrefix(err.Error(), "line 2: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want line 2: %s", line, err, want)
		}
	}
}

// Any line is refused, or has complete addresses of one family.
func FuzzParse(f *testing.F) {
	for line := range strings.Lines(recorded) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		e, err := Parse(line)
		if err != nil || e.Protocol.String() == "unknown" {
			return
		}
		for _, a := range []bool{e.Client.IsValid(), e.To.IsValid(), e.From.IsValid(), e.Client.Addr().Is4() == e.To.Addr().Is4(), e.From.Addr().Is4() == e.To.Addr().Is4()} {
			if !a {
				t.Fatalf("%q: got %v", line, e)
			}
		}
	})
}
